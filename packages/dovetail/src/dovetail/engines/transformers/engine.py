"""transformers as a token engine: the model runs in a child process, over the step protocol."""

import json
from functools import partial
from pathlib import Path

import msgspec

from dovetail.engines.registry import EngineSetup, EngineSetupError, parse_options
from dovetail.engines.steps.engine import ChildEngine
from dovetail.engines.transformers.options import TransformersChildConfig, TransformersOptions
from dovetail.engines.transformers.process import TransformersProcess
from dovetail_tokenizers import Tokenizer


class TransformersEngine(ChildEngine):
    """The engine for one folder of weights.

    The context length is the model's, or the largest that fits into memory. The capabilities are
    known when the model is loaded. Without a `tokenizer`, the tokens of logprobs are identified by
    their ids.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: Tokenizer | None = None,
        *,
        context_length: int | None = None,
        options: TransformersOptions | None = None,
    ) -> None:
        options = options or TransformersOptions()
        config = TransformersChildConfig(str(folder), context_length, options)
        super().__init__(
            "transformers",
            partial(TransformersProcess, folder, options),
            msgspec.to_builtins(config),
            tokenizer,
            context_length=context_length or read_context_length(folder),
            tcp=options.tcp,
        )

    async def start(self) -> None:
        """Load the model in a child process."""
        assert isinstance(self._process, TransformersProcess)
        self._process.check_installed()
        await super().start()


def read_context_length(folder: Path) -> int | None:
    """Return the context length of a model; None if its folder does not contain it."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    length = (config.get("text_config") or config).get("max_position_embeddings")
    return length if isinstance(length, int) else None


def create(setup: EngineSetup) -> TransformersEngine:
    """Create the engine for a folder of weights in the Hugging Face layout."""
    if setup.model is None or not (setup.model / "config.json").is_file():
        raise EngineSetupError(_missing_weights_message(setup.model))
    options = parse_options(setup.options, TransformersOptions)
    adapter = Path(options.adapter or "").expanduser()
    if options.adapter and not (adapter / "adapter_config.json").is_file():
        raise EngineSetupError(
            f"the adapter {options.adapter} is not a folder with adapter_config.json"
        )
    return TransformersEngine(
        setup.model, setup.tokenizer, context_length=setup.context_length, options=options
    )


def _missing_weights_message(path: Path | None) -> str:
    wanted = "the engine 'transformers' requires a folder with config.json and weights"
    if path is None:
        return wanted
    if not path.exists():
        return f"{wanted}, but {path} does not exist"
    return f"{wanted}, but {path} is a {'folder without them' if path.is_dir() else 'file'}"
