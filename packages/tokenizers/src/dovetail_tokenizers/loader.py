"""Load the tokenizer of a model folder in any supported format."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dovetail_tokenizers.gguf_tokenizer import from_gguf
from dovetail_tokenizers.hf import HfTokenizer
from dovetail_tokenizers.normal_form import NormalForm
from dovetail_tokenizers.patterns import FILE_PATTERNS
from dovetail_tokenizers.tiktoken import TiktokenTokenizer
from dovetail_tokenizers.tokenizer import Tokenizer

# Files to look for in a folder, in order of preference.
TOKENIZER_FILES = ("tokenizer.json", "tekken.json", "*.tiktoken", "tiktoken.model", "*.gguf")


def load_tokenizer(folder_or_file: str | Path, controls: Iterable[str] = ()) -> Tokenizer:
    """Read the tokenizer in a folder, or a tokenizer file.

    Raises a `ValueError` that names the file if it is damaged or has another format.
    """
    path = Path(folder_or_file)
    file = _find(path) if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"file not found: {file}")
    try:
        return _read(file, controls)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        fault = f"{type(error).__name__} {error}"
        raise ValueError(f"{file} is damaged or not a tokenizer file: {fault}") from error


def _read(file: Path, controls: Iterable[str]) -> Tokenizer:
    if file.suffix == ".gguf":
        return from_gguf(file, controls)
    if file.suffix == ".tiktoken" or file.name == "tiktoken.model":
        return _load_tiktoken(file, frozenset(controls))
    if file.suffix == ".json" and file.name.startswith("tekken"):
        return TiktokenTokenizer.from_tekken(file)
    if file.suffix == ".json":
        return HfTokenizer.from_file(file, controls)
    raise ValueError(f"{file}: unsupported format (supported: {', '.join(TOKENIZER_FILES)})")


def _find(folder: Path) -> Path:
    for pattern in TOKENIZER_FILES:
        found = sorted(folder.glob(pattern))
        if found:
            return found[0]
    raise FileNotFoundError(f"no tokenizer in {folder}: expected {', '.join(TOKENIZER_FILES)}")


def _load_tiktoken(file: Path, controls: frozenset[str]) -> TiktokenTokenizer:
    """Load a plain vocabulary; the folder's config has the added tokens, sometimes the pattern."""
    config_file = file.with_name("tokenizer_config.json")
    config: dict[str, Any] = json.loads(config_file.read_bytes()) if config_file.is_file() else {}
    specials: dict[str, int] = {}
    ordinary: dict[str, int] = {}
    for id, token in config.get("added_tokens_decoder", {}).items():
        named = token.get("special") or token["content"] in controls
        (specials if named else ordinary)[token["content"]] = int(id)
    pattern = config.get("pat_str") or _pattern_of(file)
    form: NormalForm | None = "NFC" if file.name.startswith("qwen") else None
    return TiktokenTokenizer.from_file(file, pattern, specials, ordinary=ordinary, normal_form=form)


def _pattern_of(file: Path) -> str:
    for start, pattern in FILE_PATTERNS.items():
        if file.name.startswith(start):
            return pattern
    known = ", ".join(FILE_PATTERNS)
    raise ValueError(
        f"unknown split pattern of {file.name}: set `pat_str` in tokenizer_config.json, "
        f"or start the file name with one of {known}"
    )
