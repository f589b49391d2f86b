"""Options of the HTTP application."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dovetail.access.auth import ApiKeys, PrefixSharing
from dovetail.access.browser import BrowserPolicy, is_loopback
from dovetail.access.key_file import Budgets, KeyFileError
from dovetail.access.limits import LimitStore, MemoryLimitStore, RateLimits
from dovetail.http.codex_catalog import read_profiles
from dovetail.net.client_address import ClientAddressResolver
from dovetail.settings.config import Config
from dovetail_protocols import DEFAULT_LIMITS, RequestLimits

DispatchChannel = Literal["tools", "reasoning"]


@dataclass(frozen=True)
class WebSocketOptions:
    """Limits and timeouts of WebSockets.

    max_connections: Open WebSockets.
    max_cached_bytes: Size of the responses that all connections together cache.
    max_streams: Concurrent responses per connection.
    max_queued_messages: Messages per connection that wait behind running responses.
    max_fragments: Fragments per message.
    message_timeout_seconds: Time from the first byte of a message to its last.
    idle_timeout_seconds: Time without a message or a response. Users pause between turns.
    ping_interval_seconds, ping_timeout_seconds: Settings of the pings that detect dead clients.
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
    """Limits and intervals of background responses.

    max_running, max_running_per_tenant: Concurrent runs of all tenants, and of each tenant.
    max_running_bytes: Size of the frames of all runs. Above it, no run is started.
    max_finished, max_finished_bytes: Finished runs whose stream can still be read.
    heartbeat_seconds: Interval between two heartbeats of a run in the store.
    poll_seconds: Interval between two checks for a cancellation by another process.
    stale_seconds: Time after which a run without a heartbeat counts as failed.
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
    """Limits, keys and formats of the HTTP application.

    keys: API keys.
    limit_store: Rate limit states of the keys.
    client_addresses: Resolves client addresses behind proxies.
    browser_policy: Hosts and origins that may use the server.
    max_body_bytes: Maximum size of a body, both as received and after decompression.
    request_limits: Maximum numbers of tools, messages, blocks and JSON values of a request.
    max_concurrent: Requests that run concurrently.
    max_queued: Requests that wait beyond `max_concurrent`.
    queue_timeout: Maximum seconds that a request waits.
    drain_timeout: Seconds that running requests have to finish when the server stops.
    body_timeout: Seconds in which a body must arrive.
    keep_alive: Seconds without output after which a stream sends a keep-alive.
    messages_api: Whether to serve Anthropic's Messages API.
    websockets: Whether to serve the Responses API over WebSockets.
    websocket_options, background_options: Limits and timeouts of WebSockets and background runs.
    metrics_need_key: Whether `/metrics` requires an admin key.
    reasoning_field: Name of the field with the reasoning in Chat Completions.
    dispatch: Side channels that are enabled for every stream.
    log_prefix: Whether to log prefix diagnostics.
    capture_payloads: Whether to capture bodies of requests and responses for recorders.
    codex_profiles: Entries of Codex's own catalog that models are shown with to Codex, by slug.
    prefix_sharing: Which tenants share an engine's prefix cache.
    ui: Whether to serve the web UI.
    ui_payloads: Whether the web UI shows texts of prompts and responses.
    """

    keys: ApiKeys = field(default_factory=ApiKeys)
    limit_store: LimitStore = field(default_factory=MemoryLimitStore)
    client_addresses: ClientAddressResolver = field(default_factory=ClientAddressResolver)
    browser_policy: BrowserPolicy = field(default_factory=BrowserPolicy)
    max_body_bytes: int = 64 << 20
    request_limits: RequestLimits = DEFAULT_LIMITS
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
    codex_profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    prefix_sharing: PrefixSharing = "tenant"
    ui: bool = False
    ui_payloads: bool = False


def _codex_profile_slugs(config: Config) -> list[str | None]:
    """Return the profile of each model. That of the server is the default of its models."""
    default = config.codex_profile
    return [table.get("codex_profile", default) for table in config.models] or [default]


def build_http_options(
    config: Config, limit_store: LimitStore | None = None, *, reloading: bool = False
) -> HttpOptions:
    """Build the options from the settings. Raises if the keys or the profile cannot be read.

    reloading: Whether the server is already running, so that the key file may be empty by now.
    """
    limits = RateLimits(
        config.rate_limit_requests, config.rate_limit_tokens, config.max_concurrent_per_key
    )
    budgets = Budgets(
        config.budget_tokens_per_day, config.budget_tokens_per_month, config.budget_cost_per_month
    )
    dispatch: list[DispatchChannel] = []
    if config.enable_streaming_tool_dispatch:
        dispatch.append("tools")
    if config.enable_streaming_reasoning_dispatch:
        dispatch.append("reasoning")
    try:
        file = config.api_key_file
        keys = ApiKeys(
            config.api_key, file=file, may_be_empty=reloading, limits=limits, budgets=budgets
        )
    except KeyFileError as error:
        raise ValueError(f"--api-key-file {error}") from error
    if config.ui_payloads and not keys:
        raise ValueError("--ui-payloads requires --api-key or --api-key-file")
    if keys.have_budgets and not config.usage:
        raise ValueError("budgets require usage to be recorded; remove --no-usage")
    return HttpOptions(
        keys=keys,
        limit_store=MemoryLimitStore() if limit_store is None else limit_store,
        client_addresses=ClientAddressResolver(config.trusted_proxy, enabled=config.log_peers),
        browser_policy=BrowserPolicy(
            config.allowed_host,
            config.allowed_origin,
            exposed=not is_loopback(config.http_host),
        ),
        max_body_bytes=config.max_body_bytes,
        request_limits=RequestLimits(
            max_tools=config.max_tools,
            max_tool_bytes=config.max_tool_bytes,
            max_messages=config.max_messages,
            max_blocks=config.max_blocks,
        ),
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
        capture_payloads=(config.trace_payloads and config.trace_file is not None)
        or (config.ui and config.ui_payloads),
        codex_profiles=read_profiles(_codex_profile_slugs(config)),
        prefix_sharing=config.prefix_sharing,
        ui=config.ui,
        ui_payloads=config.ui_payloads,
    )
