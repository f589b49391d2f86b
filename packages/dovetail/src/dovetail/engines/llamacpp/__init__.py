"""The embedded engine: llama.cpp's server, from PyPI's `xllamacpp`, in a child process."""

from pathlib import Path

from dovetail.engines.llamacpp.engine import LlamaCppEngine
from dovetail.engines.llamacpp.process import LlamaCppOptions
from dovetail.engines.registry import EngineSetup, EngineSetupError, parse_options

__all__ = ["LlamaCppEngine", "LlamaCppOptions", "create"]


def create(setup: EngineSetup) -> LlamaCppEngine:
    """Create the engine for a GGUF file."""
    if setup.model is None or setup.model.is_dir():
        raise EngineSetupError(_missing_gguf_message(setup.model))
    options = parse_options(setup.options, LlamaCppOptions)
    if options.adapter is not None and not Path(options.adapter).is_file():
        raise EngineSetupError(f"the adapter {options.adapter} is not a file")
    return LlamaCppEngine(
        setup.model, setup.tokenizer, context_length=setup.context_length, options=options
    )


def _missing_gguf_message(folder: Path | None) -> str:
    wanted = "the engine 'llamacpp' requires a GGUF file"
    found = sorted(folder.glob("*.gguf")) if folder is not None else []
    if found:
        return f"{wanted}: select one of the files in {folder}, such as {found[0].name}"
    if folder is None:
        return wanted
    return (
        f"{wanted}, but the folder {folder} has none; "
        "to run a folder of weights, set --engine transformers"
    )
