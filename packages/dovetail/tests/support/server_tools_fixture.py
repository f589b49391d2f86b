"""Server tools with a provider that tests control, and a server that offers them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from http_fixture import Stage, run, serving

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.sealed_text import TextSealer
from dovetail.prompt.pdf_text import PdfText, extract_pdf_text
from dovetail.server_tools.runner import ServerTools
from dovetail.server_tools.search import FoundPage, SearchQuery, ServerToolError
from dovetail.server_tools.web_client import Page, WebClient

PAGES = (
    FoundPage("https://example.com/oslo", "Weather in Oslo", "Rain, 7 degrees.", "1 day ago"),
    FoundPage("https://weather.example.org/no/oslo", "Oslo today", "Rain until noon."),
)
SEARCH_TOOL: dict[str, Any] = {"type": "web_search_20250305", "name": "web_search"}
FETCH_TOOL: dict[str, Any] = {"type": "web_fetch_20250910", "name": "web_fetch"}
CLIENT_TOOL: dict[str, Any] = {"name": "look_up", "input_schema": {"type": "object"}}


def call(name: str, **arguments: object) -> str:
    """A call in the notation of the model of the fixture."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


SEARCH = call("web_search", query="weather Oslo")


@dataclass
class StubProvider:
    """Returns the same pages for every query, or fails."""

    pages: tuple[FoundPage, ...] = PAGES
    error: str | None = None
    queries: list[SearchQuery] = field(default_factory=list)
    wait: asyncio.Event | None = None
    cancelled: int = 0

    async def search(self, query: SearchQuery) -> list[FoundPage]:
        self.queries.append(query)
        if self.wait is not None:
            try:
                await self.wait.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.error is not None:
            raise ServerToolError(self.error)
        return list(self.pages)


class StubClient(WebClient):
    """Returns one page for every URL."""

    body = b"<title>A page</title><p>Some text."

    async def fetch(self, url: str, check: Any) -> Page:
        if not check(url):
            raise ServerToolError("url_not_allowed")
        return Page(url, "text/html", self.body)


async def extract_pdf(data: bytes, max_chars: int, tenant: str) -> PdfText | None:
    return extract_pdf_text(data, 10, max_chars)


def create_tools(
    provider: StubProvider | None = None, *, client: WebClient | None = None, **more: Any
) -> ServerTools:
    sealer = TextSealer(Keyring([bytes(32)]))
    return ServerTools(sealer, provider or StubProvider(), client, extract_pdf, **more)


def run_served(
    scene: Callable[[Stage], Awaitable[None]],
    tools: ServerTools | None = None,
    ledger: Ledger | None = None,
) -> None:
    """Run a scene against a server that runs these tools."""

    async def main() -> None:
        async with serving(server_tools=tools or create_tools(), ledger=ledger) as stage:
            await scene(stage)

    run(main)


def prompt_text(stage: Stage, at: int = -1) -> str:
    return str(stage.engine.tokenizer.decode(stage.engine.requests[at].prompt))


def assert_exact(stage: Stage, outputs: list[str]) -> None:
    """Assert that every prompt extends the prompt before it and its output, token for token."""
    encode = stage.engine.tokenizer.encode
    requests = stage.engine.requests
    for before, after, output in zip(requests, requests[1:], outputs, strict=False):
        known = [*before.prompt, *encode(output)]
        assert list(after.prompt[: len(known)]) == known
