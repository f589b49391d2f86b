"""Where the tokenizer and the template of a remote engine's model are on this machine."""

from pathlib import Path

from dovetail.engines.engine import RemoteModel
from dovetail.models.weights import ModelUnavailableError, find_model

#: Either of them can be made into a tokenizer; weights are not needed.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "tiktoken.model")


def find_tokenizer_files(remote: RemoteModel, tokenizer: str | None = None) -> Path:
    """The model's folder or GGUF file: the one that the user names, else the one it was loaded
    from, if that is at hand, else what the hub has under its name.

    Raises `WeightsError` with what to pass.
    """
    if tokenizer is not None:
        return _require_tokenizer(find_model(tokenizer), f"--tokenizer {tokenizer}")
    tried = []
    for place in dict.fromkeys((remote.root, remote.name)):
        if place is None:
            continue
        try:
            return _require_tokenizer(find_model(place), place)
        except ModelUnavailableError as fault:
            tried.append(f"{place}: {fault}")
    raise ModelUnavailableError(
        f"the tokenizer and the template of {remote.name!r} are needed here, and are not found. "
        "Pass --tokenizer with a folder that has tokenizer.json, tokenizer_config.json and "
        f"config.json of the model, or its id on the hub. Tried were {'; '.join(tried)}"
    )


def _require_tokenizer(path: Path, label: str) -> Path:
    """A path that has a tokenizer. The hub's folder of a model may have none."""
    if path.is_dir() and not any((path / name).is_file() for name in _TOKENIZER_FILES):
        tiktoken = any(path.glob("*.tiktoken")) or any(path.glob("*.gguf"))
        if not tiktoken:
            raise ModelUnavailableError(
                f"{label} has no tokenizer: one of {', '.join(_TOKENIZER_FILES)}"
            )
    return path
