"""Run the calls of server tools, within the limits of the request and of the server."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from dovetail.ledger.sealed_text import TextSealer
from dovetail.server_tools.domains import is_allowed
from dovetail.server_tools.page_text import ExtractPdf, extract_text
from dovetail.server_tools.result_room import ResultRoom
from dovetail.server_tools.result_text import (
    PART_SEPARATOR,
    ResultSource,
    find_sources,
    write_result,
)
from dovetail.server_tools.search import (
    MAX_RESULTS,
    FoundPage,
    SearchProvider,
    SearchQuery,
    ServerToolError,
)
from dovetail.server_tools.web_client import WebClient
from dovetail_model import (
    Request,
    ServerTool,
    ServerToolKind,
    ServerToolResult,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    WebResult,
)
from dovetail_protocols import NO_RESULTS_TEXT, write_page, write_tool_error

DEFAULT_TIMEOUT_SECONDS = 30.0
DEFAULT_MAX_TURNS = 10
MAX_QUERY_CHARS = 1_000
MAX_PAGE_CHARS = 60_000
#: The codes of calls that did not reach a provider or a site.
REJECTED_CALL_CODES = frozenset(
    (
        "max_uses_exceeded",
        "invalid_tool_input",
        "query_too_long",
        "url_not_in_prior_context",
        "url_not_allowed",
        "url_too_long",
    )
)
_CHARS_PER_TOKEN = 4
_log = logging.getLogger(__name__)

OnCall = Callable[[ServerToolKind, str, float], None]
"""Receives the kind of a finished call, its outcome (`ok` or an error code) and its seconds."""


@dataclass(frozen=True)
class ServerTools:
    """What the server needs to run server tools.

    `search`, `client`: None if searches or pages are not enabled.
    `timeout_seconds`: The maximum time of one call.
    `max_turns`: The maximum number of model turns in one response that end with calls of them.
    """

    sealer: TextSealer
    search: SearchProvider | None = None
    client: WebClient | None = None
    extract_pdf: ExtractPdf | None = None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    max_turns: int = DEFAULT_MAX_TURNS

    @property
    def kinds(self) -> frozenset[ServerToolKind]:
        """The kinds of tools that can be run."""
        found: list[ServerToolKind] = []
        found += ["web_search"] if self.search is not None else []
        found += ["web_fetch"] if self.client is not None else []
        return frozenset(found)


@dataclass
class FinishedCall:
    """The result of a call, for the client and for the model."""

    result: ServerToolResult
    block: ToolResultBlock


class CallRunner:
    """Runs the calls of one response."""

    def __init__(self, tools: ServerTools, request: Request, on_call: OnCall) -> None:
        self._tools = tools
        self._tenant = request.identity.tenant
        self._on_call = on_call
        self._declared = {tool.name: tool for tool in request.server_tools}
        self._uses: dict[str, int] = {}
        #: The results that the model may refer to, by number.
        self.sources = find_sources(request)

    def kind_of(self, name: str) -> ServerToolKind | None:
        """Return what a tool does; None if the client runs it."""
        tool = self._declared.get(name)
        return None if tool is None else tool.kind

    async def run(
        self, request: Request, calls: list[tuple[int, ToolCallBlock]], room: ResultRoom
    ) -> list[FinishedCall]:
        """Run the calls of a turn, each with its index in the response, at the same time.

        A result that does not fit into the `room` is shortened.
        """
        permitted = [self._count_use(call, request) for _, call in calls]
        outcomes = await asyncio.gather(
            *(
                self._run(call, request, error)
                for (_, call), error in zip(calls, permitted, strict=True)
            )
        )
        return [
            self._finish(index, call, outcome, room)
            for (index, call), outcome in zip(calls, outcomes, strict=True)
        ]

    def _count_use(self, call: ToolCallBlock, request: Request) -> str | None:
        """Return the code of the error if a call exceeds the limit of the request."""
        tool = self._declared[call.name]
        used = self._uses[call.name] = self._uses.get(call.name, 0) + 1
        if tool.max_uses is not None and used > tool.max_uses:
            return "max_uses_exceeded"
        limit = request.max_server_calls
        if limit is not None and sum(self._uses.values()) > limit:
            return "max_uses_exceeded"
        return None

    async def _run(
        self, call: ToolCallBlock, request: Request, error: str | None
    ) -> "tuple[WebResult, ...] | str | list[FoundPage]":
        """Run a call. Returns what was found, or the code of an error."""
        tool, started = self._declared[call.name], time.perf_counter()
        outcome = error or "cancelled"
        try:
            if error is not None:
                return error
            async with asyncio.timeout(self._tools.timeout_seconds):
                found = await self._dispatch(tool, call, request)
            outcome = "ok"
            return found
        except TimeoutError:
            outcome = "unavailable"
        except ServerToolError as failed:
            outcome = failed.code
        except Exception as failed:
            _log.exception("server_tool_failed", extra={"fields": {"error": type(failed).__name__}})
            outcome = "unavailable"
        finally:
            self._on_call(tool.kind, outcome, time.perf_counter() - started)
        return outcome

    def _dispatch(
        self, tool: ServerTool, call: ToolCallBlock, request: Request
    ) -> Awaitable[tuple[WebResult, ...] | list[FoundPage]]:
        if tool.kind == "web_search":
            return self._search(tool, _read_argument(call, "query"))
        return self._fetch(tool, _read_argument(call, "url"), request)

    async def _search(self, tool: ServerTool, query: str) -> list[FoundPage]:
        assert self._tools.search is not None
        if len(query) > MAX_QUERY_CHARS:
            raise ServerToolError("query_too_long")
        location: Any = None if tool.location is None else dict(tool.location)
        found = await self._tools.search.search(
            SearchQuery(query, MAX_RESULTS, tool.allowed_domains, tool.blocked_domains, location)
        )
        return [
            page
            for page in found
            if page.url.startswith(("http://", "https://"))
            and not any(c.isspace() for c in page.url)
            and is_allowed(page.url, tool.allowed_domains, tool.blocked_domains)
        ][:MAX_RESULTS]

    async def _fetch(self, tool: ServerTool, url: str, request: Request) -> tuple[WebResult, ...]:
        assert self._tools.client is not None
        assert self._tools.extract_pdf is not None
        if not is_known_url(url, request):
            raise ServerToolError("url_not_in_prior_context")
        allowed, blocked = tool.allowed_domains, tool.blocked_domains
        page = await self._tools.client.fetch(url, lambda url: is_allowed(url, allowed, blocked))
        limit = MAX_PAGE_CHARS
        if tool.max_content_tokens is not None:
            limit = min(limit, tool.max_content_tokens * _CHARS_PER_TOKEN)
        found = await extract_text(page, limit, self._tenant, self._tools.extract_pdf)
        return (WebResult(page.url, found.title, found.text),)

    def _finish(
        self,
        index: int,
        call: ToolCallBlock,
        outcome: tuple[WebResult, ...] | str | list[FoundPage],
        room: ResultRoom,
    ) -> FinishedCall:
        """Write the result as the model reads it, and seal it for the client."""
        kind = self._declared[call.name].kind
        error = outcome if isinstance(outcome, str) else None
        results: tuple[WebResult, ...] = ()
        parts: list[str] = []
        if isinstance(outcome, list):
            results = self._number_fitting(outcome, room)
            parts = [result.text for result in results]
            if not outcome:
                parts = [NO_RESULTS_TEXT]
        elif error is None:
            results = _shorten_pages(outcome, room)  # type: ignore[arg-type]
            parts = [write_page(page.url, page.title, page.text) for page in results]
        if not parts:  # an error, or no room for any result
            error = error or "unavailable"
            parts = [write_tool_error(kind, error)]
        seals = tuple(self._tools.sealer.seal(part, self._tenant) for part in parts)
        if results:
            results = tuple(
                msgspec.structs.replace(result, seal=seal)
                for result, seal in zip(results, seals, strict=True)
            )
        return FinishedCall(
            ServerToolResult(index, call.id, kind, results, error, seals),
            ToolResultBlock(call.id, (TextBlock(PART_SEPARATOR.join(parts)),)),
        )

    def _number_fitting(self, pages: list[FoundPage], room: ResultRoom) -> tuple[WebResult, ...]:
        """Number the results of a search, as far as there is room for them."""
        first = max(self.sources, default=0) + 1
        texts = room.fit_parts([write_result(first + at, page) for at, page in enumerate(pages)])
        results: list[WebResult] = []
        for at, (page, text) in enumerate(zip(pages, texts, strict=False)):
            self.sources[first + at] = ResultSource(first + at, page.url, page.title, page.text)
            results.append(WebResult(page.url, page.title, text, page.page_age))
        return tuple(results)


def _shorten_pages(pages: tuple[WebResult, ...], room: ResultRoom) -> tuple[WebResult, ...]:
    """Shorten the text of fetched pages. One for which there is no room is dropped."""
    found: list[WebResult] = []
    for page in pages:
        head = room.count(write_page(page.url, page.title, "")) if page.text else 0
        text = room.fit(page.text, room.tokens - head)
        if text is not None:
            found.append(msgspec.structs.replace(page, text=text))
    return tuple(found)


def is_known_url(url: str, request: Request) -> bool:
    """Return whether a URL is in the conversation outside of the model's own output.

    Without this rule, a page could make the model send data to a URL that it composes.
    """
    bare = url.partition("#")[0].rstrip("/")
    if not bare:
        return False
    blocks = [*request.system]
    for turn in request.turns:
        if turn.role != "assistant":
            blocks += turn.blocks
    for block in blocks:
        inner = block.blocks if isinstance(block, ToolResultBlock) else (block,)
        if any(isinstance(one, TextBlock) and bare in one.text for one in inner):
            return True
    return False


def _read_argument(call: ToolCallBlock, name: str) -> str:
    try:
        arguments = msgspec.json.decode(call.arguments, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ServerToolError("invalid_tool_input") from error
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ServerToolError("invalid_tool_input")
    return value.strip()
