"""Read the files of a model: chat templates, special tokens, limits and sampling defaults.

The source is a model folder, a GGUF file, or a template file that the user names. A model may have
several templates: `tool_use` for requests with tools, and `default` for others. In a folder,
`chat_template.jinja` (with `additional_chat_templates/*.jinja`) takes precedence over
`tokenizer_config.json`, which takes precedence over the old `chat_template.json`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dovetail_model import Sampling
from dovetail_tokenizers import read_gguf_metadata

#: For a model without a template. Most models that were tuned without one support this format.
CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] or '' }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ModelFilesError(Exception):
    """The files of a model are missing or unreadable."""


@dataclass(frozen=True)
class TemplateSource:
    """The templates of a model by name, and the special tokens that they may use."""

    templates: Mapping[str, str]
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def default(self) -> str:
        """The template for requests without tools."""
        return self.templates.get("default") or next(iter(self.templates.values()))

    @property
    def for_tools(self) -> str:
        """The template for requests with tools."""
        return self.templates.get("tool_use") or self.default


def read_folder_templates(folder: Path, custom: Path | None = None) -> TemplateSource:
    """Read the templates of a model folder, or the custom template instead."""
    config = read_json(folder / "tokenizer_config.json") or {}
    legacy = read_json(folder / "special_tokens_map.json") or {}
    specials = {**_read_special_tokens(legacy), **_read_special_tokens(config)}
    if (folder / "tekken.json").is_file():  # its special tokens are fixed and not listed
        specials = {"bos_token": "<s>", "eos_token": "</s>", **specials}
    if custom is not None:
        return _read_custom_template(custom, specials)
    processor = read_json(folder / "chat_template.json") or {}
    found = (
        (_read_jinja_files(folder), "chat_template.jinja"),
        (_templates_by_name(config.get("chat_template")), "tokenizer_config.json"),
        (_templates_by_name(processor.get("chat_template")), "chat_template.json"),
    )
    for templates, origin in found:
        if templates:
            return TemplateSource(templates, specials, origin)
    return _chatml_fallback(specials)


def read_gguf_templates(metadata: Mapping[str, Any], custom: Path | None = None) -> TemplateSource:
    """Read the templates in the metadata of a GGUF file, or the custom template instead."""
    specials = _read_gguf_special_tokens(metadata)
    if custom is not None:
        return _read_custom_template(custom, specials)
    key = "tokenizer.chat_template"
    templates = {
        name[len(key) + 1 :] or "default": text
        for name, text in metadata.items()
        if (name == key or name.startswith(key + ".")) and isinstance(text, str) and text
    }
    return (
        TemplateSource(templates, specials, "GGUF metadata")
        if templates
        else _chatml_fallback(specials)
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object, or return None if the file does not exist."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelFilesError(f"{path} does not contain a JSON object")
    return value


def _read_custom_template(path: Path, special_tokens: Mapping[str, str]) -> TemplateSource:
    try:
        return TemplateSource(
            {"default": path.read_text(encoding="utf-8")}, special_tokens, str(path)
        )
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"the template {path} cannot be read: {error}") from error


def _chatml_fallback(special_tokens: Mapping[str, str]) -> TemplateSource:
    warning = "the model has no chat template: plain ChatML is used, which may not suit the model"
    return TemplateSource(
        {"default": CHATML_TEMPLATE}, special_tokens, "built-in ChatML", (warning,)
    )


def _read_jinja_files(folder: Path) -> dict[str, str]:
    default = folder / "chat_template.jinja"
    files = {"default": default} if default.is_file() else {}
    files |= {p.stem: p for p in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    return {name: path.read_text(encoding="utf-8") for name, path in files.items()}


def _templates_by_name(value: object) -> dict[str, str]:
    """Read templates from a string, a list of named templates, or an object."""
    if isinstance(value, str):
        return {"default": value} if value else {}
    if isinstance(value, Sequence):
        pairs = ((t.get("name"), t.get("template")) for t in value if isinstance(t, Mapping))
        return {n: t for n, t in pairs if isinstance(n, str) and isinstance(t, str)}
    if isinstance(value, Mapping):
        return {n: t for n, t in value.items() if isinstance(t, str)}
    return {}


def _read_special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Read every `..._token`: a string, or an object with `content`."""
    found: dict[str, str] = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def _read_gguf_special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    tokens = metadata.get("tokenizer.ggml.tokens") or ()
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "seperator": "sep", "padding": "pad"}
    found: dict[str, str] = {}
    for spelled, name in names.items():
        id = metadata.get(f"tokenizer.ggml.{spelled}_token_id")
        if isinstance(id, int) and 0 <= id < len(tokens):
            found[f"{name}_token"] = tokens[id]
    return found


@dataclass(frozen=True)
class ModelFiles:
    """The data of a model folder or a GGUF file. `family_ids` identify the model family."""

    path: Path
    name: str
    family_ids: tuple[str, ...]
    template_source: TemplateSource
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    context_length: int | None = None
    sampling: Sampling = field(default_factory=Sampling)


def read_model_files(path: Path, custom_template: Path | None = None) -> ModelFiles:
    """Read the files of the model at a path. Raises `ModelFilesError` if there is no model."""
    if path.is_dir():
        return _read_folder(path, custom_template)
    if path.is_file() and path.suffix == ".gguf":
        return _read_gguf(path, custom_template)
    if path.is_file():
        raise ModelFilesError("not a model: the path must be a folder or a .gguf file")
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
    """Return the model id of a path in the hub cache: `models--organisation--name/snapshots/…`."""
    for part in reversed(path.resolve().parts):
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    return ""


def _token_ids(value: object) -> tuple[int, ...]:
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tuple(id for id in values if isinstance(id, int) and id >= 0)


#: Larger values in tokenizer_config.json mean that no limit is set.
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
