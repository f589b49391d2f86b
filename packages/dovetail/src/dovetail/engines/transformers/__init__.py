"""Engine that runs models with transformers, on a GPU or a CPU, in a child process."""

from pathlib import Path

from dovetail.engines.registry import EngineSetup, EngineSetupError, parse_options
from dovetail.engines.transformers.engine import TransformersEngine
from dovetail.engines.transformers.options import TransformersOptions

__all__ = ["TransformersEngine", "TransformersOptions", "create"]


def create(setup: EngineSetup) -> TransformersEngine:
    """Create the engine for a folder of weights in the Hugging Face layout."""
    if setup.model is None or not (setup.model / "config.json").is_file():
        raise EngineSetupError(_missing_weights_message(setup.model))
    return TransformersEngine(
        setup.model,
        setup.tokenizer,
        context_length=setup.context_length,
        options=parse_options(setup.options, TransformersOptions),
    )


def _missing_weights_message(path: Path | None) -> str:
    wanted = "the engine 'transformers' requires a folder with config.json and weights"
    if path is None:
        return wanted
    if not path.exists():
        return f"{wanted}, but {path} does not exist"
    return f"{wanted}, but {path} is a {'folder without them' if path.is_dir() else 'file'}"
