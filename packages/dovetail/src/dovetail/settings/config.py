"""All settings of a server, with one set of names.

The names are those of the flags (`--served-model-name` is `served_model_name`), of the TOML file
and of the environment (`DOVETAIL_SERVED_MODEL_NAME`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


def _setting(default: Any, help: str, *, per_model: bool = False) -> Any:
    """A field with its help text. A mutable default is created per config."""
    metadata = {"help": help, "per_model": per_model}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def _model_setting(default: Any, help: str) -> Any:
    """A setting that may differ from model to model."""
    return _setting(default, help, per_model=True)


# ruff: noqa: RUF009
@dataclass(frozen=True)
class Config:
    """The settings of one server."""

    # Models
    model: str | None = _model_setting(
        None,
        "a built-in name, a GGUF file, a model folder, or a hub id (default: smollm2); "
        "of a remote engine, the name of its model",
    )
    served_model_name: tuple[str, ...] = _model_setting(
        (), "names that clients use; the first is the model's own"
    )
    model_alias: tuple[str, ...] = _setting(
        (), "ALIAS=NAME: another name for a served one; it may have * and ?"
    )
    models: tuple[Mapping[str, Any], ...] = _setting(
        (), "several models: a table [[models]] of settings for each, in the file"
    )
    context_length: int | None = _model_setting(
        None, "the most tokens of a prompt and its answer together"
    )

    # Engines
    engine: str = _model_setting(
        "auto",
        "what generates: auto, llamacpp, scripted or transformers here; vllm, sglang or openai at "
        "an --engine-url",
    )
    engine_url: tuple[str, ...] = _model_setting(
        (), "where a remote engine listens; several are replicas of one model"
    )
    engine_api_key: str | None = _model_setting(None, "the key that a remote engine asks for")
    engine_wait: float = _model_setting(
        0.0, "seconds to wait for a remote engine that is not up yet"
    )
    engine_option: tuple[str, ...] = _model_setting(
        (), "NAME=VALUE: an option of the engine's own, by the names of its page"
    )
    tokenizer: str | None = _model_setting(
        None, "folder or hub id with the tokenizer and template of a remote engine's model"
    )
    upstream_api: Literal["auto", "chat", "responses"] = _model_setting(
        "auto", "what an openai engine speaks"
    )
    upstream_raw: bool = _model_setting(
        False, "the openai engine gives unparsed text: our parsers read it"
    )
    replicas: int = _model_setting(1, "how many copies of an engine that runs here")
    migration_limit: int = _model_setting(
        3, "how often an answer may go on on another replica after its own died"
    )
    recovery_wait: float = _model_setting(
        30.0, "seconds that a broken answer waits for its only replica to come back and go on"
    )
    script: Path | None = _model_setting(None, "what the scripted engine plays")
    threads: int | None = _model_setting(None, "threads of the embedded engine")
    slots: int = _model_setting(4, "requests that the embedded engine works on at once")
    gpu_layers: int | None = _model_setting(None, "layers that the embedded engine puts on a GPU")

    # Parsers and templates
    tool_call_parser: str | None = _model_setting(
        None, "how the model writes calls; by default found out from the model"
    )
    reasoning_parser: str | None = _model_setting(
        None, "how the model writes thoughts; by default found out from the model"
    )
    custom_jinja_template: Path | None = _model_setting(
        None, "a chat template to use instead of the model's"
    )
    chat_template_kwargs: Mapping[str, Any] = _model_setting(
        {}, "JSON object of switches for the chat template"
    )
    default_thinking_mode: Literal["enabled", "disabled"] | None = _model_setting(
        None, "whether to think when a request does not say"
    )
    reasoning_field_name: Literal["reasoning_content", "reasoning"] = _setting(
        "reasoning_content", "where Chat Completions show thoughts"
    )
    exclude_tools_when_tool_choice_none: bool = _model_setting(
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

    # Storage
    data_dir: Path | None = _setting(None, "where weights, keys and turns are kept")
    store: str = _setting("sqlite", "where turns are kept: sqlite, memory, or a redis:// URL")
    seal_key_file: Path | None = _setting(
        None, "keys that seal turns, one a line; by default one is made in the data folder"
    )
    keep_logprobs: bool = _model_setting(
        False, "ask the engine for the logprob of each token, and keep them for `dovetail export`"
    )
    responses_max_bytes: int = _setting(
        256 << 20, "how much of stored responses is kept; the oldest go first"
    )
    responses_max_age: float = _setting(
        30 * 86_400.0, "seconds for which a stored response is kept"
    )

    # HTTP
    http_host: str = _setting("127.0.0.1", "address to listen on")
    http_port: int | None = _setting(
        None,
        "port to listen on (default: 8000, in front of a remote engine 8001); 0 takes a free one",
    )
    tls_cert_path: Path | None = _setting(None, "certificate, to serve HTTPS")
    tls_key_path: Path | None = _setting(None, "key of the certificate")
    api_key: tuple[str, ...] = _setting((), "key that clients must send; several are allowed")
    api_key_file: Path | None = _setting(
        None,
        "file of hashed keys: a line `tenant:sha256 [limits]` each; read again when it changes",
    )
    rate_limit_requests: int | None = _setting(None, "requests a minute for each key")
    rate_limit_tokens: int | None = _setting(
        None, "tokens a minute for each key, of prompts (less what was cached) and answers"
    )
    max_concurrent_per_key: int | None = _setting(
        None, "requests of one key that are worked on at once"
    )
    trusted_proxy: tuple[str, ...] = _setting(
        (),
        "address or network (10.0.0.0/8) of a proxy in front: what it says in X-Forwarded-For of "
        "where a request comes from is believed, for the log",
    )
    metrics_need_key: bool = _setting(False, "show /metrics to admin keys only")
    max_body_bytes: int = _setting(64 << 20, "largest request body, after decompression")
    max_held_bytes: int | None = _setting(
        None,
        "bytes of bodies that requests may have together until they are over "
        "(default: 16 times --max-body-bytes)",
    )
    max_concurrent_requests: int = _setting(1024, "requests that are worked on at once")
    max_queued_requests: int = _setting(256, "requests that wait for room, the most urgent first")
    queue_timeout: float = _setting(60.0, "seconds that a request waits for room")
    workers: int = _setting(1, "processes that serve one port, over one store of turns")
    drain_timeout: float = _setting(
        300.0, "seconds that running answers may go on when the server is told to stop"
    )
    enable_anthropic_api: bool = _setting(True, "serve the Messages API")
    enable_responses_websocket: bool = _setting(
        True, "serve the Responses API over WebSockets too; off: such a request gets 426"
    )
    enable_streaming_tool_dispatch: bool = _setting(
        False, "send tool_call_dispatch events in every stream"
    )
    enable_streaming_reasoning_dispatch: bool = _setting(
        False, "send reasoning_dispatch events in every stream"
    )
    codex_profile: str | None = _setting(
        None, "show models to Codex under this entry of its own bundled catalog, such as gpt-5.5"
    )

    # Logs and traces
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "how much is logged")
    log_format: Literal["logfmt", "json"] = _setting("logfmt", "how a line of the log is written")
    log_peers: bool = _setting(True, "log the address that each request comes from")
    trace_file: Path | None = _setting(
        None, "write a JSON line for each request that is over: no payloads, see --trace-payloads"
    )
    trace_max_bytes: int = _setting(64 << 20, "size at which a trace file is put away, compressed")
    trace_keep: int = _setting(8, "how many trace files that were put away are kept")
    trace_payloads: bool = _setting(
        False, "write bodies of requests and answers into the trace, for debugging"
    )
    otlp_endpoint: str | None = _setting(
        None, "send spans to this OpenTelemetry collector, by OTLP over HTTP (dovetail[otel])"
    )

    # Sampling defaults
    temperature: float | None = _model_setting(None, "stronger than the model's own default")
    top_p: float | None = _model_setting(None, "stronger than the model's own default")
    top_k: int | None = _model_setting(None, "stronger than the model's own default")
