"""Search providers: SearXNG's JSON API, and programs."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from dovetail.server_tools.search import (
    FoundPage,
    SearchQuery,
    ServerToolError,
    create_provider,
)

QUERY = SearchQuery("weather Oslo")


def reply(status: str, body: object) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n"
    return head.encode() + data


def run_searxng(response: bytes, scene: Callable[[str], Awaitable[None]]) -> list[str]:
    """Run a stand-in for SearXNG and return the paths that were requested."""
    paths: list[str] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        paths.append(head.split(b" ")[1].decode())
        writer.write(response)
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        async with server, asyncio.timeout(20):
            await scene(f"searxng=http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base")

    asyncio.run(main())
    return paths


def test_searxng() -> None:
    pages = [
        {"url": "https://a.example", "title": "A", "content": "Text.", "publishedDate": None},
        {"url": "https://b.example", "title": "B", "content": None, "publishedDate": "2026-11-01"},
    ]

    async def scene(setting: str) -> None:
        query = SearchQuery(
            "weather & Oslo", allowed_domains=("a.example",), user_location={"country": "no"}
        )
        assert await create_provider(setting).search(query) == [
            FoundPage("https://a.example", "A", "Text."),
            FoundPage("https://b.example", "B", "", "2026-11-01"),
        ]

    (path,) = run_searxng(reply("200 OK", {"query": "q", "results": pages}), scene)
    parts = urlsplit(path)
    assert parts.path == "/base/search"
    assert parse_qs(parts.query) == {
        "q": ["weather & Oslo site:a.example"],
        "format": ["json"],
        "language": ["all-NO"],
    }


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (reply("429 Too Many Requests", {}), "too_many_requests"),
        (reply("403 Forbidden", {}), "unavailable"),
        (reply("200 OK", b"<html>"), "unavailable"),
        (reply("200 OK", {"answers": []}), "unavailable"),
        (b"", "unavailable"),
    ],
)
def test_searxng_fails(response: bytes, code: str) -> None:
    async def scene(setting: str) -> None:
        with pytest.raises(ServerToolError) as failed:
            await create_provider(setting).search(QUERY)
        assert failed.value.code == code

    run_searxng(response, scene)


def test_dead_searxng_is_unavailable() -> None:
    async def main() -> None:
        with pytest.raises(ServerToolError) as failed:
            await create_provider("searxng=http://127.0.0.1:9").search(QUERY)
        assert failed.value.code == "unavailable"

    asyncio.run(main())


def run_command(script: str, tmp_path: Path, query: SearchQuery = QUERY) -> list[FoundPage] | str:
    path = tmp_path / "search.py"
    path.write_text(script)
    found: list[list[FoundPage] | str] = []

    async def main() -> None:
        provider = create_provider(f"command={sys.executable} {path}")
        try:
            found.append(await provider.search(query))
        except ServerToolError as error:
            found.append(error.code)

    asyncio.run(main())
    return found[0]


def test_command_reads_and_writes_json(tmp_path: Path) -> None:
    script = """
import json, sys
query = json.load(sys.stdin)
print(json.dumps({"results": [{"url": "https://a.example", "title": json.dumps(query)}]}))
"""
    query = SearchQuery("x", blocked_domains=("b.example",), user_location={"city": "Oslo"})
    found = run_command(script, tmp_path, query)
    assert isinstance(found, list)
    assert json.loads(found[0].title) == {
        "query": "x",
        "blocked_domains": ["b.example"],
        "user_location": {"city": "Oslo"},
    }


def test_command_may_write_null(tmp_path: Path) -> None:
    page = {"url": "https://a.example", "title": None, "text": None, "page_age": None}
    reply = json.dumps({"results": [page, {"url": None}], "error": None})
    found = run_command(f"print({reply!r})", tmp_path)
    assert found == [FoundPage("https://a.example")]


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ('print(\'{"error": "too_many_requests"}\')', "too_many_requests"),
        ('print(\'{"error": "of our own"}\')', "unavailable"),
        ("print('text')", "unavailable"),
        ("print('{}'); raise SystemExit(3)", "unavailable"),
        ("while True: print('x' * 65536)", "unavailable"),
    ],
)
def test_command_fails(script: str, code: str, tmp_path: Path) -> None:
    assert run_command(script, tmp_path) == code


def test_missing_program_is_unavailable() -> None:
    async def main() -> None:
        with pytest.raises(ServerToolError) as failed:
            await create_provider("command=/no/such/program").search(QUERY)
        assert failed.value.code == "unavailable"

    asyncio.run(main())


@pytest.mark.parametrize("setting", ["", "google", "searxng=", "searxng=nothing", "command= "])
def test_invalid_setting(setting: str) -> None:
    with pytest.raises(ValueError, match=r"expected|URL"):
        create_provider(setting)
