"""Everything that can be set about a server, in one place and with one set of names.

The names are those of the flags (`--served-model-name` is `served_model_name`), of the TOML file
and of the environment (`DOVETAIL_SERVED_MODEL_NAME`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


def _setting(default: Any, help: str) -> Any:
    """A field with its help. A mutable default is made anew for each config."""
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"help": help})
    return field(default=default, metadata={"help": help})


# ruff: noqa: RUF009
@dataclass(frozen=True)
class Config:
    """The settings of one server."""

    # What is served
    model: str = _setting("smollm2", "a built-in name, a GGUF file, a model folder, or a hub id")
    served_model_name: tuple[str, ...] = _setting(
        (), "names that clients use; the first is the model's own"
    )
    model_alias: tuple[str, ...] = _setting(
        (), "ALIAS=NAME: another name for a served one; it may have * and ?"
    )
    engine: str = _setting("auto", "what generates: auto, llamacpp or scripted")
    engine_url: str | None = _setting(None, "where a remote engine listens")
    script: Path | None = _setting(None, "what the scripted engine plays")
    migration_limit: int = _setting(
        3, "how often a request may go on on another worker; there is one worker now"
    )
    context_length: int | None = _setting(
        None, "the most tokens of a prompt and its answer together"
    )
    threads: int | None = _setting(None, "threads of the embedded engine")
    slots: int = _setting(4, "requests that the embedded engine works on at once")
    gpu_layers: int | None = _setting(None, "layers that the embedded engine puts on a GPU")

    # How the model is read
    tool_call_parser: str | None = _setting(
        None, "how the model writes calls; by default found out from the model"
    )
    reasoning_parser: str | None = _setting(
        None, "how the model writes thoughts; by default found out from the model"
    )
    custom_jinja_template: Path | None = _setting(
        None, "a chat template to use instead of the model's"
    )
    chat_template_kwargs: Mapping[str, Any] = _setting(
        {}, "JSON object of switches for the chat template"
    )
    default_thinking_mode: Literal["enabled", "disabled"] | None = _setting(
        None, "whether to think when a request does not say"
    )
    reasoning_field_name: Literal["reasoning_content", "reasoning"] = _setting(
        "reasoning_content", "where Chat Completions show thoughts"
    )
    exclude_tools_when_tool_choice_none: bool = _setting(
        False, "hide tools from the model when it may not call any"
    )

    # Prompts
    strip_anthropic_preamble: bool = _setting(
        True, "take the billing line out of Claude Code's system text"
    )
    volatile_pattern: tuple[str, ...] = _setting(
        (), "regular expression of text that must not reach the prompt, more than the usual ones"
    )
    replay: Literal["auto", "exact", "client"] = _setting(
        "auto", "whose copy of an earlier turn counts where the two differ in form"
    )
    resume_drop_thinking: float | None = _setting(
        None, "clear older thoughts once when a session comes back after so many seconds"
    )
    log_prefix: bool = _setting(
        False, "log what each prompt shares with the last one of its session"
    )

    # What is kept
    data_dir: Path | None = _setting(None, "where weights, keys and turns are kept")
    store: str = _setting("sqlite", "where turns are kept: sqlite, memory, or a redis:// URL")
    seal_key_file: Path | None = _setting(
        None, "keys that seal turns, one a line; by default one is made in the data folder"
    )

    # HTTP
    http_host: str = _setting("127.0.0.1", "address to listen on")
    http_port: int = _setting(8000, "port to listen on; 0 takes a free one")
    tls_cert_path: Path | None = _setting(None, "certificate, to serve HTTPS")
    tls_key_path: Path | None = _setting(None, "key of the certificate")
    api_key: tuple[str, ...] = _setting((), "key that clients must send; several are allowed")
    api_key_file: Path | None = _setting(None, "file of hashed keys: a line `tenant:sha256` each")
    max_body_bytes: int = _setting(64 << 20, "largest request body, after decompression")
    max_concurrent_requests: int = _setting(1024, "requests that are worked on at once")
    enable_anthropic_api: bool = _setting(True, "serve the Messages API")
    enable_streaming_tool_dispatch: bool = _setting(
        False, "send tool_call_dispatch events in every stream"
    )
    enable_streaming_reasoning_dispatch: bool = _setting(
        False, "send reasoning_dispatch events in every stream"
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "how much is logged")

    # Sampling, where a request does not say
    temperature: float | None = _setting(None, "stronger than the model's own default")
    top_p: float | None = _setting(None, "stronger than the model's own default")
    top_k: int | None = _setting(None, "stronger than the model's own default")
