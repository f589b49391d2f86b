"""Search providers: a SearXNG instance, or a program.

Both receive a `SearchQuery` and return the found pages. The caller applies the domain filters: a
provider only uses them to find more of the allowed pages.
"""

import asyncio
import shlex
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec

from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, send_request
from dovetail_model import DovetailError

MAX_RESULTS = 10
_MAX_OUTPUT_BYTES = 4 << 20
_STATUS_TOO_MANY_REQUESTS = 429


class ServerToolError(Exception):
    """A call that failed. `code` is one of the codes of Anthropic's API."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class SearchQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """A query with the options of the request. A program gets it as JSON."""

    query: str
    max_results: int = MAX_RESULTS
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    user_location: dict[str, Any] | None = None


class FoundPage(msgspec.Struct, frozen=True):
    """A page that a search found. `text` is an excerpt."""

    url: str
    title: str = ""
    text: str = ""
    page_age: str | None = None


class SearchProvider(Protocol):
    """Runs searches. `search` raises `ServerToolError`."""

    async def search(self, query: SearchQuery) -> list[FoundPage]: ...


def create_provider(setting: str) -> SearchProvider:
    """Create the provider of a setting: `searxng=URL` or `command=PROGRAM`."""
    kind, _, value = setting.partition("=")
    if kind == "searxng" and value:
        return SearxngProvider(Endpoint.parse(value))
    if kind == "command" and value.strip():
        return CommandProvider(tuple(shlex.split(value)))
    raise ValueError(f"expected searxng=URL or command=PROGRAM, got {setting!r}")


class _SearxngPage(msgspec.Struct, frozen=True):
    url: str = ""
    title: str | None = None
    content: str | None = None
    published: str | None = msgspec.field(name="publishedDate", default=None)


class _SearxngReply(msgspec.Struct, frozen=True):
    results: list[_SearxngPage]


class SearxngProvider:
    """Searches with the JSON API of a SearXNG instance."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def search(self, query: SearchQuery) -> list[FoundPage]:
        fields = {"q": _with_site_operators(query), "format": "json"}
        country = (query.user_location or {}).get("country")
        if isinstance(country, str) and country:
            fields["language"] = f"all-{country.upper()}"
        request = ClientRequest(
            "GET",
            f"/search?{urlencode(fields)}",
            headers={"accept": "application/json"},
            timeouts=Timeouts(connect=10.0, read=60.0),
        )
        try:
            async with send_request(self._endpoint, request) as response:
                if response.status == _STATUS_TOO_MANY_REQUESTS:
                    raise ServerToolError("too_many_requests")
                if response.status != 200:
                    raise ServerToolError("unavailable")
                body = await response.read(_MAX_OUTPUT_BYTES)
            reply = msgspec.json.decode(body, type=_SearxngReply)
        except (DovetailError, msgspec.MsgspecError) as error:
            raise ServerToolError("unavailable") from error
        return [
            FoundPage(page.url, page.title or "", page.content or "", page.published)
            for page in reply.results
        ]


def _with_site_operators(query: SearchQuery) -> str:
    """Restrict a query to the allowed domains with the operator that most engines know."""
    sites = [f"site:{domain}" for domain in query.allowed_domains]
    if not sites:
        return query.query
    return f"{query.query} {sites[0] if len(sites) == 1 else '(' + ' OR '.join(sites) + ')'}"


class _CommandPage(msgspec.Struct, frozen=True):
    url: str | None = None
    title: str | None = None
    text: str | None = None
    page_age: str | None = None


class _CommandReply(msgspec.Struct, frozen=True):
    results: list[_CommandPage] | None = None
    error: str | None = None


class CommandProvider:
    """Runs a program for each search: JSON on its standard input, JSON on its standard output."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command

    async def search(self, query: SearchQuery) -> list[FoundPage]:
        output = await self._run(msgspec.json.encode(query))
        try:
            reply = msgspec.json.decode(output, type=_CommandReply)
        except msgspec.MsgspecError as error:
            raise ServerToolError("unavailable") from error
        if reply.error is not None:
            known = reply.error in ("too_many_requests", "query_too_long")
            raise ServerToolError(reply.error if known else "unavailable")
        return [
            FoundPage(page.url, page.title or "", page.text or "", page.page_age)
            for page in reply.results or ()
            if page.url
        ]

    async def _run(self, data: bytes) -> bytes:
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, stderr=null
            )
        except OSError as error:
            raise ServerToolError("unavailable") from error
        try:
            return await _exchange(process, data)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _exchange(process: asyncio.subprocess.Process, data: bytes) -> bytes:
    """Write the input and read the limited output of a program."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(data + b"\n")
        await process.stdin.drain()
        process.stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the program does not read its input
    output = bytearray()
    while chunk := await process.stdout.read(1 << 16):
        output += chunk
        if len(output) > _MAX_OUTPUT_BYTES:
            raise ServerToolError("unavailable")
    if await process.wait() != 0:
        raise ServerToolError("unavailable")
    return bytes(output)
