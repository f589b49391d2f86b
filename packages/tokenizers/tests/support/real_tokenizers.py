"""Real tokenizers for tests, downloaded by tools/fetch_tokenizers.py."""

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from dovetail_tokenizers import Tokenizer, load_tokenizer

FOLDER = Path(__file__).resolve().parents[4] / ".cache" / "tokenizers"
COMPLETE = ".complete"
# Markers that parsers and templates rely on although some vocabularies do not mark them special.
MARKERS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
# For other tests of the package: a vocabulary in a format that is not loaded directly.
RAW = frozenset({"mistral_spm"})
_BRIEF = frozenset({"qwen3", "deepseek_v3", "mistral_tekken"})  # one of each kind


def available() -> list[str]:
    """Return the names of the downloaded tokenizers."""
    found = (mark.parent.name for mark in FOLDER.glob(f"*/{COMPLETE}"))
    return sorted(name for name in found if name not in RAW)


def brief(names: Iterable[str]) -> list[Any]:
    """Parametrize a slow test: most of the tokenizers run only in the long suites."""
    return [pytest.param(name, marks=() if name in _BRIEF else pytest.mark.long) for name in names]


def folder(name: str) -> Path:
    """Return the folder of a downloaded tokenizer. Skip the test if it does not exist."""
    home = FOLDER / name
    if not (home / COMPLETE).exists():
        pytest.skip(f"no tokenizer {name}: run tools/fetch_tokenizers.py")
    return home


def added_tokens(name: str) -> dict[str, int]:
    """Return the added tokens of a downloaded tokenizer as its files list them, special or not."""
    home = folder(name)
    if (home / "tokenizer.json").is_file():
        listed = json.loads((home / "tokenizer.json").read_bytes())["added_tokens"]
        return {token["content"]: token["id"] for token in listed}
    if (home / "tokenizer_config.json").is_file():
        config = json.loads((home / "tokenizer_config.json").read_bytes())
        return {token["content"]: int(id) for id, token in config["added_tokens_decoder"].items()}
    return dict(real(name).controls)


def real(name: str, controls: Iterable[str] = MARKERS) -> Tokenizer:
    """Return a real tokenizer, loaded once. Skip the test if it was not downloaded."""
    return _read(folder(name), tuple(controls))


@functools.cache
def bare(name: str) -> tokenizers.Tokenizer:
    """Return the library's own tokenizer, to compare with."""
    return tokenizers.Tokenizer.from_file(str(folder(name) / "tokenizer.json"))


@functools.cache
def _read(home: Path, controls: tuple[str, ...]) -> Tokenizer:
    return load_tokenizer(home, controls)
