"""What can be set about the HTTP side."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dovetail.codex_catalog import read_profile
from dovetail.config import Config
from dovetail.http.auth import Keys, read_keys

Channel = Literal["tools", "reasoning"]


@dataclass(frozen=True)
class HttpOptions:
    """Limits, keys and forms.

    `max_body_bytes` bounds a body as it comes and again once it is decompressed. Beyond
    `max_concurrent` requests, `max_queued` wait for room, `queue_timeout` seconds. `keep_alive` is
    the silence, in seconds, after which a stream shows a sign of life. `dispatch` names the side
    channels that every stream gets, whether the client asked or not. `codex_profile` is the
    entry of Codex's own catalog under which it is shown the models.
    """

    keys: Keys = field(default_factory=Keys)
    max_body_bytes: int = 64 << 20
    max_concurrent: int = 1024
    max_queued: int = 256
    queue_timeout: float = 60.0
    body_timeout: float = 120.0
    keep_alive: float = 10.0
    messages_api: bool = True
    metrics_need_key: bool = False
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    dispatch: frozenset[Channel] = frozenset()
    log_prefix: bool = False
    codex_profile: Mapping[str, Any] | None = None


def http_options(config: Config) -> HttpOptions:
    """What the settings say of it. Raises where keys or profile cannot be read."""
    hashed = read_keys(config.api_key_file) if config.api_key_file is not None else []
    wanted: list[Channel] = []
    if config.enable_streaming_tool_dispatch:
        wanted.append("tools")
    if config.enable_streaming_reasoning_dispatch:
        wanted.append("reasoning")
    return HttpOptions(
        keys=Keys(config.api_key, hashed),
        max_body_bytes=config.max_body_bytes,
        max_concurrent=config.max_concurrent_requests,
        max_queued=config.max_queued_requests,
        queue_timeout=config.queue_timeout,
        messages_api=config.enable_anthropic_api,
        reasoning_field=config.reasoning_field_name,
        dispatch=frozenset(wanted),
        log_prefix=config.log_prefix,
        codex_profile=read_profile(config.codex_profile) if config.codex_profile else None,
    )
