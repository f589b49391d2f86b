"""Server tools: tools that the API's own server runs, within the response."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

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
    `listed`: The request's list of allowed tools contains it.
    `implied`: No declaration names it: it completes another one, and may be missing.
    `max_uses`: The maximum number of calls in one response.
    `allowed_domains`, `blocked_domains`: Domains, with an optional path, of the results.
    `location`: The user's approximate location, as the client sent it.
    `max_content_tokens`: The maximum length of a fetched page.
    `unused`: The paths of options that have no effect.
    """

    kind: ServerToolKind
    name: str
    type: str
    field: str
    position: int = 0
    required: bool = False
    listed: bool = False
    implied: bool = False
    max_uses: int | None = None
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    location: Mapping[str, Any] | None = None
    max_content_tokens: int | None = None
    unused: tuple[str, ...] = ()


class WebResult(msgspec.Struct, frozen=True):
    """One result of a search, or a fetched page.

    `text`: What the model read about it, or the text of the page.
    `seal`: The opaque copy of what the model read, which a client sends back.
    """

    url: str
    title: str = ""
    text: str = ""
    page_age: str | None = None
    seal: str = ""


class ServerToolResult(msgspec.Struct, frozen=True, tag="server_tool_result"):
    """The result of a call that the server ran: an event of the stream, and a block of the message.

    `index`, `call_id`: The call.
    `results`: What was found; one page of `web_fetch`.
    `error`: The code of an error. Then there are no results.
    `seals`: The opaque copies of everything that the model read.
    """

    type: ClassVar[Literal["server_tool_result"]] = "server_tool_result"
    index: int
    call_id: str
    kind: ServerToolKind
    results: tuple[WebResult, ...] = ()
    error: str | None = None
    seals: tuple[str, ...] = ()
    raw: str = ""


class Citation(msgspec.Struct, frozen=True, tag="citation"):
    """A reference of the open text block to a result.

    `url`: The page; empty if the reference is to a file of an upstream server.
    `text`: The beginning of what the result contains.
    `start`, `end`: The place of the reference in the block, in characters.
    `annotation`: The reference in the form of the Responses API, if it comes from there.
    """

    type: ClassVar[Literal["citation"]] = "citation"
    number: int
    url: str
    title: str
    text: str
    start: int
    end: int
    annotation: Mapping[str, Any] | None = None
