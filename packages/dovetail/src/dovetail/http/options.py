"""Options of the HTTP server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dovetail.access.auth import ApiKeys
from dovetail.access.key_file import KeyFileError
from dovetail.access.limits import LimitStore, MemoryLimitStore, RateLimits
from dovetail.http.codex_catalog import read_profile
from dovetail.net.client_address import ClientAddressResolver
from dovetail.settings.config import Config

DispatchChannel = Literal["tools", "reasoning"]


@dataclass(frozen=True)
class WebSocketOptions:
    """Limits and timeouts of WebSockets.

    `max_connections`: WebSockets that are open at a time.
    `max_cached_bytes`: of the responses that all connections cache for themselves.
    `max_streams`: of one connection, responses that are generated at a time.
    `max_queued_messages`: of one connection, messages that wait behind running responses.
    `max_fragments`: of one message.
    `message_timeout_seconds`: from the first byte of a message to its last.
    `idle_timeout_seconds`: without a message or a response; users think between turns.
    `ping_interval_seconds`, `ping_timeout_seconds`: of the pings that find dead clients.
    """

    max_connections: int = 4096
    max_cached_bytes: int = 256 << 20
    max_streams: int = 16
    max_queued_messages: int = 8
    max_fragments: int = 4096
    message_timeout_seconds: float = 120.0
    idle_timeout_seconds: float = 1800.0
    ping_interval_seconds: float = 30.0
    ping_timeout_seconds: float = 60.0


@dataclass(frozen=True)
class BackgroundOptions:
    """Limits and intervals of responses that run in the background.

    `max_running`, `max_running_per_tenant`: runs at a time, of all tenants and of each.
    `max_running_bytes`: of the frames of all runs; above it, no run is started.
    `max_finished`, `max_finished_bytes`: finished runs whose stream can still be read.
    `heartbeat_seconds`: between two heartbeats of a run in the store.
    `poll_seconds`: between two checks whether another process has cancelled a run.
    `stale_seconds`: after which a run without a heartbeat counts as failed.
    """

    max_running: int = 256
    max_running_per_tenant: int = 64
    max_running_bytes: int = 256 << 20
    max_finished: int = 64
    max_finished_bytes: int = 32 << 20
    heartbeat_seconds: float = 5.0
    poll_seconds: float = 1.0
    stale_seconds: float = 30.0


DEFAULT_WEBSOCKET_OPTIONS = WebSocketOptions()
DEFAULT_BACKGROUND_OPTIONS = BackgroundOptions()


@dataclass(frozen=True)
class HttpOptions:
    """Limits, keys and formats.

    keys: API keys.
    limit_store: Rate limit states of the keys.
    client_addresses: Resolves client addresses behind proxies.
    max_body_bytes: Size of a body as received, and again when decompressed.
    max_concurrent: Requests that run at once.
    max_queued: Requests that wait beyond `max_concurrent`.
    queue_timeout: Seconds that a request waits at most.
    drain_timeout: Seconds that running requests have when the server is stopped.
    body_timeout: Seconds in which a body must arrive.
    keep_alive: Seconds of silence after which a stream sends a keep-alive.
    messages_api: Whether to serve Anthropic's Messages API.
    websockets: Whether to serve the Responses API over WebSockets.
    websocket_options, background_options: Their limits and timeouts.
    metrics_need_key: Whether metrics are shown to admins only.
    reasoning_field: Name of the field with the reasoning in Chat Completions.
    dispatch: Side channels of every stream, whether requested or not.
    log_prefix: Whether to log prefix diagnostics.
    capture_payloads: Whether to capture bodies of requests and responses for recorders.
    codex_profile: Entry of Codex's own catalog under which it is shown the models.
    """

    keys: ApiKeys = field(default_factory=ApiKeys)
    limit_store: LimitStore = field(default_factory=MemoryLimitStore)
    client_addresses: ClientAddressResolver = field(default_factory=ClientAddressResolver)
    max_body_bytes: int = 64 << 20
    max_concurrent: int = 1024
    max_queued: int = 256
    queue_timeout: float = 60.0
    drain_timeout: float = 300.0
    body_timeout: float = 120.0
    keep_alive: float = 10.0
    messages_api: bool = True
    websockets: bool = True
    websocket_options: WebSocketOptions = DEFAULT_WEBSOCKET_OPTIONS
    background_options: BackgroundOptions = DEFAULT_BACKGROUND_OPTIONS
    metrics_need_key: bool = False
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    dispatch: frozenset[DispatchChannel] = frozenset()
    log_prefix: bool = False
    capture_payloads: bool = False
    codex_profile: Mapping[str, Any] | None = None


def build_http_options(
    config: Config, limit_store: LimitStore | None = None, *, reloading: bool = False
) -> HttpOptions:
    """Build the options from the settings. Raises where keys or profile cannot be read.

    `reloading`: The server runs already, so the key file may have become empty.
    """
    limits = RateLimits(
        config.rate_limit_requests, config.rate_limit_tokens, config.max_concurrent_per_key
    )
    dispatch: list[DispatchChannel] = []
    if config.enable_streaming_tool_dispatch:
        dispatch.append("tools")
    if config.enable_streaming_reasoning_dispatch:
        dispatch.append("reasoning")
    try:
        file = config.api_key_file
        keys = ApiKeys(config.api_key, file=file, may_be_empty=reloading, limits=limits)
    except KeyFileError as error:
        raise ValueError(f"--api-key-file {error}") from error
    return HttpOptions(
        keys=keys,
        limit_store=MemoryLimitStore() if limit_store is None else limit_store,
        client_addresses=ClientAddressResolver(config.trusted_proxy, enabled=config.log_peers),
        max_body_bytes=config.max_body_bytes,
        max_concurrent=config.max_concurrent_requests,
        max_queued=config.max_queued_requests,
        queue_timeout=config.queue_timeout,
        drain_timeout=config.drain_timeout,
        messages_api=config.enable_anthropic_api,
        websockets=config.enable_responses_websocket,
        metrics_need_key=config.metrics_need_key,
        reasoning_field=config.reasoning_field_name,
        dispatch=frozenset(dispatch),
        log_prefix=config.log_prefix,
        capture_payloads=config.trace_payloads and config.trace_file is not None,
        codex_profile=read_profile(config.codex_profile) if config.codex_profile else None,
    )
