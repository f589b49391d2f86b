"""What can be set about the HTTP side."""

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
class HttpOptions:
    """Limits, keys and forms.

    `book` has what is left of each key's limits, `peers` tell where requests come from.
    `metrics_need_key` shows numbers to admins only.
    `max_body_bytes` bounds a body as it comes and again once it is decompressed. Beyond
    `max_concurrent` requests, `max_queued` wait for room, `queue_timeout` seconds. Those that run
    when the server is told to stop have `drain_timeout` seconds. `keep_alive` is
    the silence, in seconds, after which a stream shows a sign of life. `dispatch` names the side
    channels that every stream gets, whether the client asked or not. `keep_payloads` has bodies
    and answers kept for those who record requests. `codex_profile` is the
    entry of Codex's own catalog under which it is shown the models.
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
    metrics_need_key: bool = False
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    dispatch: frozenset[DispatchChannel] = frozenset()
    log_prefix: bool = False
    capture_payloads: bool = False
    codex_profile: Mapping[str, Any] | None = None


def build_http_options(
    config: Config, limit_store: LimitStore | None = None, *, reloading: bool = False
) -> HttpOptions:
    """What the settings say of it. Raises where keys or profile cannot be read.

    `again`: the server runs already, so its keys may all have been taken out.
    """
    limits = RateLimits(
        config.rate_limit_requests, config.rate_limit_tokens, config.max_concurrent_per_key
    )
    wanted: list[DispatchChannel] = []
    if config.enable_streaming_tool_dispatch:
        wanted.append("tools")
    if config.enable_streaming_reasoning_dispatch:
        wanted.append("reasoning")
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
        dispatch=frozenset(wanted),
        log_prefix=config.log_prefix,
        capture_payloads=config.trace_payloads and config.trace_file is not None,
        codex_profile=read_profile(config.codex_profile) if config.codex_profile else None,
    )
