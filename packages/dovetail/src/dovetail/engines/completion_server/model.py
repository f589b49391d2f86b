"""The model that a server says it has, as a folder in Hugging Face's layout describes it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dovetail_tokenizers import Tokenizer, TokenTextCache, load_tokenizer

DEFAULT_MAX_MODEL_LEN = 1 << 20  # tokens, where nobody says
_FILES = ("config", "generation_config", "tokenizer_config")


@dataclass(frozen=True)
class CompletionModel:
    """Names, tokenizer and window of a model. `eos_ids` end a turn, the usual one first."""

    names: tuple[str, ...]
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...] = ()
    max_model_len: int = DEFAULT_MAX_MODEL_LEN

    @cached_property
    def texts(self) -> TokenTextCache:
        """The texts of its tokens, shared by all answers."""
        return TokenTextCache(self.tokenizer)


def read_completion_model(
    folder: Path, names: tuple[str, ...] = (), max_model_len: int | None = None
) -> CompletionModel:
    """What the folder says about the model, and what is given where that says it better."""
    tokenizer = load_tokenizer(folder)
    read = {name: _read(folder / f"{name}.json") for name in _FILES}
    window = max_model_len or read["config"].get("max_position_embeddings")
    return CompletionModel(
        names or (folder.resolve().name,),
        tokenizer,
        _eos_ids(read, tokenizer),
        window or DEFAULT_MAX_MODEL_LEN,
    )


def _eos_ids(read: Mapping[str, Mapping[str, Any]], tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokenizer's own first: vLLM tells a stop at that one from a stop at the others."""
    named = read["tokenizer_config"].get("eos_token")
    spelling = named.get("content") if isinstance(named, Mapping) else named
    ids = [tokenizer.controls.get(spelling)] if isinstance(spelling, str) else []
    for source in ("generation_config", "config"):
        given = read[source].get("eos_token_id")
        ids += given if isinstance(given, list) else [given]
    return tuple(dict.fromkeys(id for id in ids if id is not None))


def _read(path: Path) -> Mapping[str, Any]:
    read: Mapping[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    return read
