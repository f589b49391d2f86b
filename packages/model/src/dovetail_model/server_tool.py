"""Server tools: tools that the API's own server runs, within the response."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

ServerToolKind = Literal["web_search", "web_fetch", "other"]


class ServerTool(msgspec.Struct, frozen=True):
    """A server tool as a request declares it.

    `kind`: What it does; `other` cannot be run by any setting.
    `name`: The name under which the model calls it.
    `type`: The declared type, such as `web_search_20250305`.
    `field`: The path of its declaration.
    `position`: The number of client tools that are declared before it.
    `required`: The request requires a call of it.
    `implied`: No declaration names it: it completes another one, and may be missing.
    `max_uses`: The maximum number of calls in one response.
    `allowed_domains`, `blocked_domains`: Domains, with an optional path, of the results.
    `location`: The user's approximate location, as the client sent it.
    `max_content_tokens`: The maximum length of a fetched page.
    """

    kind: ServerToolKind
    name: str
    type: str
    field: str
    position: int = 0
    required: bool = False
    implied: bool = False
    max_uses: int | None = None
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    location: Mapping[str, Any] | None = None
    max_content_tokens: int | None = None
