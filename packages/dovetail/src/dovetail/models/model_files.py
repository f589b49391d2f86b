"""The files of a model, read: what they say about its name, its limits and its templates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dovetail.models.files import (
    ModelFilesError,
    TemplateSource,
    read_folder_templates,
    read_gguf_templates,
    read_json,
)
from dovetail_model import Sampling
from dovetail_tokenizers import read_gguf_metadata


@dataclass(frozen=True)
class ModelFiles:
    """What a folder or a GGUF file says. `ids` are names to know the model's family by."""

    path: Path
    name: str
    family_ids: tuple[str, ...]
    template_source: TemplateSource
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    context_length: int | None = None
    sampling: Sampling = field(default_factory=Sampling)


def read_model_files(path: Path, custom_template: Path | None = None) -> ModelFiles:
    """The files at a path. Raises `SourceError` if there is no model."""
    if path.is_dir():
        return _read_folder(path, custom_template)
    if path.is_file() and path.suffix == ".gguf":
        return _read_gguf(path, custom_template)
    if path.is_file():
        raise ModelFilesError("not a model: a folder or a .gguf file is wanted")
    raise ModelFilesError("no such file or folder")


def _read_folder(path: Path, custom_template: Path | None) -> ModelFiles:
    config = read_json(path / "config.json") or {}
    generation = read_json(path / "generation_config.json") or {}
    tokenizer = read_json(path / "tokenizer_config.json") or {}
    source = read_folder_templates(path, custom_template)
    ids = [_hub_name(path), str(config.get("_name_or_path") or ""), path.resolve().name]
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    return ModelFiles(
        path=path,
        name=next(filter(None, ids)),
        family_ids=tuple(dict.fromkeys(filter(None, ids))),
        template_source=source,
        stop_ids=_token_ids(ends),
        stop_strings=tuple(filter(None, [source.special_tokens.get("eos_token")])),
        context_length=_context_length(config, tokenizer),
        sampling=_read_sampling(generation, _HF_SAMPLING),
    )


def _read_gguf(path: Path, custom_template: Path | None) -> ModelFiles:
    metadata = read_gguf_metadata(path)
    architecture = metadata.get("general.architecture", "")
    ids = [str(metadata.get(f"general.{key}") or "") for key in ("basename", "name")]
    ends = [metadata.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom")]
    window = metadata.get(f"{architecture}.context_length")
    return ModelFiles(
        path=path,
        name=ids[1] or path.stem,
        family_ids=tuple(dict.fromkeys(filter(None, [*ids, path.stem]))),
        template_source=read_gguf_templates(metadata, custom_template),
        stop_ids=_token_ids(ends),
        context_length=window if isinstance(window, int) else None,
        sampling=_read_sampling(metadata, _GGUF_SAMPLING),
    )


def _hub_name(path: Path) -> str:
    """The id of a model in a cache of the hub: `models--organisation--name/snapshots/...`."""
    for part in reversed(path.resolve().parts):
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    return ""


def _token_ids(value: object) -> tuple[int, ...]:
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tuple(id for id in values if isinstance(id, int) and id >= 0)


#: Larger values in tokenizer_config.json mean that nobody set one.
_MAX_CONTEXT_TOKENS = 10**9


def _context_length(config: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> int | None:
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
            if isinstance(part.get(key), int):
                return int(part[key])
    longest = tokenizer.get("model_max_length")
    return int(longest) if isinstance(longest, int) and longest < _MAX_CONTEXT_TOKENS else None


_HF_SAMPLING = {
    name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
}
_GGUF_SAMPLING = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def _read_sampling(values: Mapping[str, Any], names: Mapping[str, str]) -> Sampling:
    given = {field: values.get(name) for field, name in names.items()}
    return msgspec.convert({f: v for f, v in given.items() if v is not None}, Sampling)
