"""The model of a completions server, read from a folder in the Hugging Face layout."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dovetail_tokenizers import Tokenizer, TokenTextCache, load_tokenizer

DEFAULT_MAX_MODEL_LEN = 1 << 20  # if neither the folder nor the operator sets it
_FILES = ("config", "generation_config", "tokenizer_config")


@dataclass(frozen=True)
class CompletionModel:
    """Names, tokenizer and context length of a model.

    `eos_ids`: the ids that end a turn, the most common one first.
    """

    names: tuple[str, ...]
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...] = ()
    max_model_len: int = DEFAULT_MAX_MODEL_LEN

    @cached_property
    def texts(self) -> TokenTextCache:
        """The cache of token texts that all responses share."""
        return TokenTextCache(self.tokenizer)


def read_completion_model(
    folder: Path, names: tuple[str, ...] = (), max_model_len: int | None = None
) -> CompletionModel:
    """Read the model from a folder. Arguments take precedence over its files."""
    tokenizer = load_tokenizer(folder)
    configs = {name: _read(folder / f"{name}.json") for name in _FILES}
    context_length = max_model_len or configs["config"].get("max_position_embeddings")
    return CompletionModel(
        names or (folder.resolve().name,),
        tokenizer,
        _eos_ids(configs, tokenizer),
        context_length or DEFAULT_MAX_MODEL_LEN,
    )


def _eos_ids(configs: Mapping[str, Mapping[str, Any]], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids that end a turn, with the tokenizer's own first.

    vLLM reports a stop at the tokenizer's id differently from a stop at the others.
    """
    named = configs["tokenizer_config"].get("eos_token")
    spelling = named.get("content") if isinstance(named, Mapping) else named
    ids = [tokenizer.controls.get(spelling)] if isinstance(spelling, str) else []
    for source in ("generation_config", "config"):
        eos = configs[source].get("eos_token_id")
        ids += eos if isinstance(eos, list) else [eos]
    return tuple(dict.fromkeys(id for id in ids if id is not None))


def _read(path: Path) -> Mapping[str, Any]:
    config: Mapping[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    return config
