"""What can be set about the HTTP side."""

from dataclasses import dataclass, field
from typing import Literal

from dovetail.http.auth import Keys

Channel = Literal["tools", "reasoning"]


@dataclass(frozen=True)
class HttpOptions:
    """Limits, keys and forms.

    `max_body_bytes` bounds a body as it comes and again once it is decompressed. `keep_alive` is
    the silence, in seconds, after which a stream shows a sign of life. `dispatch` names the side
    channels that every stream gets, whether the client asked or not.
    """

    keys: Keys = field(default_factory=Keys)
    max_body_bytes: int = 64 << 20
    max_concurrent: int = 1024
    body_timeout: float = 120.0
    keep_alive: float = 10.0
    messages_api: bool = True
    metrics_need_key: bool = False
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    dispatch: frozenset[Channel] = frozenset()
    log_prefix: bool = False
