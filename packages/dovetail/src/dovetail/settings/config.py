"""All settings of a server, with one set of names.

The names are those of the flags (`--served-model-name` is `served_model_name`), of the TOML file
and of the environment (`DOVETAIL_SERVED_MODEL_NAME`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dovetail.settings.definition import model_setting as _model_setting
from dovetail.settings.definition import setting as _setting
from dovetail.settings.scheduling_config import SchedulingConfig
from dovetail.settings.usage_config import UsageConfig
from dovetail_model import ReasoningRetention


# ruff: noqa: RUF009
@dataclass(frozen=True)
class Config(UsageConfig, SchedulingConfig):
    """The settings of one server."""

    # Models
    model: str | None = _model_setting(
        None,
        "Model to serve: a built-in name, a GGUF file, a model folder or a Hugging Face Hub id "
        "(default: smollm2). With a remote engine, the model's name on that engine.",
    )
    served_model_name: tuple[str, ...] = _model_setting(
        (),
        "Model name that clients use. The first one is the primary name, the others are "
        "accepted as well.",
    )
    model_alias: tuple[str, ...] = _setting(
        (),
        "ALIAS=NAME: accept ALIAS as another name for the served model NAME. ALIAS may contain "
        "the wildcards * and ?.",
    )
    models: tuple[Mapping[str, Any], ...] = _setting(
        (),
        "Serve several models: one [[models]] table with per-model settings for each, in the "
        "settings file.",
    )
    context_length: int | None = _model_setting(
        None, "Context length: the maximum number of tokens of a prompt and its output together."
    )

    # Engines
    engine: str = _model_setting(
        "auto",
        "Inference engine. auto, llamacpp, scripted and transformers run on this machine; sglang, "
        "dynamo and openai are remote engines at --engine-url; vllm runs on this machine without "
        "it.",
    )
    engine_url: tuple[str, ...] = _model_setting(
        (), "URL of a remote engine. Several URLs are replicas of one model."
    )
    engine_url_file: Path | None = _model_setting(
        None,
        "File with one URL of a remote engine per line. Replicas are added and removed when it "
        "changes.",
    )
    engine_dns: tuple[str, ...] = _model_setting(
        (),
        "URL of remote engines whose host name has one address per replica, such as that of a "
        "headless service. Replicas are added and removed when the addresses change.",
    )
    engine_api_key: str | None = _model_setting(None, "API key for the remote engine.")
    engine_wait: float = _model_setting(
        0.0, "Seconds to wait at startup for a remote engine that is not reachable yet."
    )
    engine_option: tuple[str, ...] = _model_setting(
        (),
        "NAME=VALUE: an option of the selected engine. The documentation of each engine lists "
        "its options.",
    )
    tokenizer: str | None = _model_setting(
        None,
        "Folder or Hugging Face Hub id with the tokenizer and chat template of a remote "
        "engine's model. An openai engine uses them only to count tokens.",
    )
    upstream_api: Literal["auto", "chat", "responses"] = _model_setting(
        "auto", "API that an openai engine serves."
    )
    upstream_raw: bool = _model_setting(
        False,
        "The openai engine returns unparsed model output: parse tool calls and reasoning here.",
    )
    replicas: int = _model_setting(1, "Number of replicas of an engine that runs on this machine.")
    fallback: tuple[str, ...] = _model_setting(
        (),
        "Served models that get the requests of this one while none of its replicas is available, "
        "in this order.",
    )
    migration_limit: int = _model_setting(
        3, "How many times a response may be continued on another replica after its replica failed."
    )
    recovery_wait: float = _model_setting(
        30.0,
        "Seconds that an interrupted response waits for a replica to recover before it fails.",
    )
    script: Path | None = _model_setting(None, "Script for the scripted engine.")
    threads: int | None = _model_setting(None, "CPU threads of the embedded engine.")
    slots: int = _model_setting(
        4, "Maximum number of requests that the embedded engine runs concurrently."
    )
    gpu_layers: int | None = _model_setting(
        None, "Number of layers that the embedded engine offloads to a GPU."
    )

    # Parsers and templates
    tool_call_parser: str | None = _model_setting(
        None, "Tool call parser. By default detected from the model."
    )
    reasoning_parser: str | None = _model_setting(
        None, "Reasoning parser. By default detected from the model."
    )
    custom_jinja_template: Path | None = _model_setting(
        None, "Chat template file to use instead of the model's own."
    )
    chat_template_kwargs: Mapping[str, Any] = _model_setting(
        {}, "JSON object of variables to pass to the chat template."
    )
    reasoning_retention: ReasoningRetention | None = _model_setting(
        None,
        "Turns that keep their reasoning after the next user turn: template (as the chat template "
        "decides), tool-turns (those with tool calls), all, or none. Default: as the parser family "
        "declares, else template.",
    )
    default_thinking_mode: Literal["enabled", "disabled"] | None = _model_setting(
        None, "Whether the model thinks if the request does not specify it."
    )
    reasoning_field_name: Literal["reasoning_content", "reasoning"] = _setting(
        "reasoning_content", "Field of Chat Completions responses that contains the reasoning."
    )
    images: Literal["replace", "reject"] = _model_setting(
        "replace",
        "Images and files that the model cannot read: replace (a text describes them, and the text "
        "of PDF files is extracted) or reject (400 if they are in the newest message).",
    )
    web_search: str | None = _setting(
        None,
        "Run web searches for the server tools of the APIs: searxng=URL (a SearXNG instance), or "
        "command=PROGRAM (JSON on its standard input and output).",
    )
    web_fetch: bool = _setting(
        False, "Fetch web pages for the server tools of the APIs, from public addresses only."
    )
    web_fetch_private: bool = _setting(
        False, "Let --web-fetch also fetch from addresses that are not public. Insecure."
    )
    server_tool_timeout: float = _setting(
        30.0, "Maximum time of one call of a server tool, in seconds."
    )
    max_server_tool_turns: int = _setting(
        10, "Maximum number of model turns of one response that end with calls of server tools."
    )
    exclude_tools_when_tool_choice_none: bool = _model_setting(
        False, "Leave tools out of the prompt if tool_choice is none."
    )
    stop_scope: Literal["text", "output"] = _model_setting(
        "text",
        "Where stop sequences end a response: text (only the visible text), or output (also "
        "reasoning and tool calls).",
    )
    guided_fallback: Literal["reject", "report"] = _model_setting(
        "reject",
        "What to do with a constraint that the engine cannot enforce: reject the request, or "
        "generate without it and report that.",
    )
    recover: tuple[Literal["reasoning", "empty", "loop"], ...] = _model_setting(
        (),
        "Defective turns to recover, separated by commas: reasoning (the model ends its turn "
        "inside reasoning), empty (a turn without text and calls), loop (output or calls that "
        "repeat).",
    )
    recover_loop_tokens: int = _model_setting(
        4096,
        "With --recover loop: how many tokens must repeat exactly before the output counts as a "
        "loop; four times as many inside the arguments of a call.",
    )
    recover_identical_calls: int = _model_setting(
        5,
        "With --recover loop: after how many identical calls with identical results the model "
        "reads a notice; after four times as many, the server ends the turn.",
    )

    # Prompts
    strip_anthropic_preamble: bool = _setting(
        True, "Remove the billing line from Claude Code's system prompt."
    )
    keep_moved_content: bool = _setting(
        True,
        "Keep blocks that a harness moves to the end of each request also where the model read "
        "them, so that the prefix stays.",
    )
    volatile_pattern: tuple[str, ...] = _setting(
        (),
        "Regular expression for text to remove from prompts, in addition to the built-in patterns.",
    )
    replay: Literal["auto", "exact", "client"] = _setting(
        "auto",
        "Source of an earlier turn's tokens: exact (the recorded tokens), client (the client's "
        "copy), or auto (the recorded tokens unless the client edited the turn).",
    )
    resume_drop_thinking: float | None = _setting(
        None,
        "Remove the reasoning of earlier turns once when a session resumes after this many idle "
        "seconds.",
    )
    log_prefix: bool = _setting(
        False, "Log how much of each prompt is shared with the previous prompt of its session."
    )

    # Storage
    data_dir: Path | None = _setting(
        None,
        "Directory for model weights, keys and the ledger (default: the variable DOVETAIL_HOME, "
        "otherwise ~/.local/share/dovetail).",
    )
    store: str = _setting(
        "sqlite", "Storage of the ledger: sqlite, memory, or a redis:// or redis+cluster:// URL."
    )
    seal_key_file: Path | None = _setting(
        None,
        "File with the keys that seal turns, one per line. By default a key is created in the "
        "data directory.",
    )
    keep_logprobs: bool = _model_setting(
        False,
        "Request the logprob of each token from the engine and store it for `dovetail export`.",
    )
    responses_max_bytes: int = _setting(
        256 << 20,
        "Maximum total size of stored responses in bytes. The least "
        "recently used are deleted first.",
    )
    responses_max_age: float = _setting(
        30 * 86_400.0, "Seconds since its last use after which a stored response is deleted."
    )

    # HTTP
    http_host: str = _setting("127.0.0.1", "Address to listen on.")
    http_port: int | None = _setting(
        None,
        "Port to listen on (default: 8000, or 8001 with a remote engine). 0 selects a free port.",
    )
    tls_cert_path: Path | None = _setting(None, "TLS certificate file. Enables HTTPS.")
    tls_key_path: Path | None = _setting(None, "Private key file of the TLS certificate.")
    api_key: tuple[str, ...] = _setting(
        (), "API key that clients must send. If several are set, each is accepted."
    )
    api_key_file: Path | None = _setting(
        None,
        "File with hashed API keys, one `tenant:sha256 [limits]` per line. It is reloaded when "
        "it changes.",
    )
    prefix_sharing: Literal["tenant", "group", "all"] = _setting(
        "tenant",
        "Which clients share an engine's prefix cache: those of a tenant, those of the tenants "
        "whose keys have the same group=, or all. Sharing lets clients find out by timing what "
        "others sent.",
    )
    rate_limit_requests: int | None = _setting(None, "Maximum requests per minute and API key.")
    rate_limit_tokens: int | None = _setting(
        None,
        "Maximum tokens per minute and API key: prompt tokens that were not cached, and output "
        "tokens.",
    )
    max_concurrent_per_key: int | None = _setting(None, "Maximum concurrent requests per API key.")
    trusted_proxy: tuple[str, ...] = _setting(
        (),
        "Address or network (10.0.0.0/8) of a reverse proxy whose X-Forwarded-For header is "
        "trusted. It determines the client address in the log.",
    )
    allowed_host: tuple[str, ...] = _setting(
        (),
        "Host name that clients may use for this server besides localhost (example.org, "
        "*.example.org, or * for all). Without API keys, requests for other names are rejected; "
        "with keys, only if this is set.",
    )
    allowed_origin: tuple[str, ...] = _setting(
        (),
        "Origin of web pages that may use this server (https://app.example.org, or * for all), "
        "with CORS. Without API keys, requests from other origins are rejected.",
    )
    metrics_need_key: bool = _setting(False, "Require an admin API key for /metrics.")
    max_body_bytes: int = _setting(
        64 << 20, "Maximum size of a request body in bytes, after decompression."
    )
    max_held_bytes: int | None = _setting(
        None,
        "Maximum total size in bytes of the bodies of all active requests (default: 16 times "
        "--max-body-bytes).",
    )
    max_tools: int = _setting(2048, "Maximum number of tools of a request.")
    max_tool_bytes: int = _setting(1 << 20, "Maximum size of one tool in bytes of JSON.")
    max_messages: int = _setting(20_000, "Maximum number of messages or input items of a request.")
    max_blocks: int = _setting(
        100_000, "Maximum number of content blocks of all messages of a request together."
    )
    max_concurrent_requests: int = _setting(1024, "Maximum concurrent requests.")
    max_queued_requests: int = _setting(
        256, "Maximum requests waiting in the queue. The most urgent ones are admitted first."
    )
    queue_timeout: float = _setting(60.0, "Maximum seconds that a request waits in the queue.")
    workers: int = _setting(1, "Number of worker processes that share the port and the ledger.")
    drain_timeout: float = _setting(
        300.0, "Seconds that active responses may continue after the server received a stop signal."
    )
    enable_anthropic_api: bool = _setting(True, "Serve the Anthropic Messages API.")
    enable_responses_websocket: bool = _setting(
        True, "Serve the Responses API also over WebSocket. If disabled, upgrade requests get 426."
    )
    enable_streaming_tool_dispatch: bool = _setting(
        False, "Send tool_call_dispatch events in every stream."
    )
    enable_streaming_reasoning_dispatch: bool = _setting(
        False, "Send reasoning_dispatch events in every stream."
    )
    codex_profile: str | None = _model_setting(
        None,
        "Present the model to Codex with the properties of this entry of its bundled catalog, "
        "such as gpt-5.5.",
    )

    # Logs and traces
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "Minimum level of log messages."
    )
    log_format: Literal["logfmt", "json"] = _setting("logfmt", "Format of log lines.")
    log_peers: bool = _setting(True, "Log the client address of each request.")
    trace_file: Path | None = _setting(
        None,
        "Write one JSON line per finished request to this file. It contains no payloads; see "
        "--trace-payloads.",
    )
    trace_max_bytes: int = _setting(
        64 << 20, "Size in bytes at which the trace file is compressed and rotated."
    )
    trace_keep: int = _setting(8, "Number of rotated trace files to keep.")
    trace_block_tokens: int = _setting(
        512,
        "Tokens per block of the prompt digests in the trace. Smaller blocks make lines longer and "
        "simulations more exact.",
    )
    trace_payloads: bool = _setting(
        False, "Write request and response bodies to the trace, for debugging."
    )
    otlp_endpoint: str | None = _setting(
        None,
        "Send spans to this OpenTelemetry collector with OTLP over HTTP. Requires dovetail[otel].",
    )

    ui: bool = _setting(
        True,
        "Serve the web UI at /ui: to admin keys, or without API keys only to this machine.",
    )
    ui_payloads: bool = _setting(
        False,
        "Show texts of prompts and responses in the web UI, for debugging. Requires API keys.",
    )

    # Sampling defaults
    temperature: float | None = _model_setting(
        None, "Default sampling temperature; overrides the model's own default."
    )
    top_p: float | None = _model_setting(None, "Default top_p; overrides the model's own default.")
    top_k: int | None = _model_setting(None, "Default top_k; overrides the model's own default.")

    @property
    def has_remote_url(self) -> bool:
        """Whether the settings name a server that runs the engine."""
        return bool(self.engine_url or self.engine_dns or self.engine_url_file)
