"""Fetching pages: only public addresses, also after redirects and second DNS replies."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from dovetail.server_tools.search import ServerToolError
from dovetail.server_tools.web_client import Page, WebClient, is_public


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::",
        "2002:a00:1::", "fe80::1%eth0", "fec0::1", "192.0.2.1", "198.18.0.1", "not an address", "",
    ],
)  # fmt: skip
def test_address_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.215.14", "8.8.8.8", "2606:4700:4700::1111"])
def test_address_is_public(address: str) -> None:
    assert is_public(address)


@dataclass
class Site:
    """A web server on a loopback port. Its names resolve to given addresses."""

    pages: dict[str, bytes] = field(default_factory=dict)
    requests: list[bytes] = field(default_factory=list)
    names: dict[str, list[list[str]]] = field(default_factory=dict)
    resolved: list[str] = field(default_factory=list)
    port: int = 0

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        replies = self.names.get(host, [["127.0.0.1"]])
        return replies.pop(0) if len(replies) > 1 else replies[0]

    async def respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head)
        path = head.split(b" ")[1].decode()
        writer.write(self.pages.get(path, b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"))
        await writer.drain()
        writer.close()


def reply(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def run_site(site: Site, scene: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        server = await asyncio.start_server(site.respond, "127.0.0.1", 0)
        site.port = server.sockets[0].getsockname()[1]
        async with server, asyncio.timeout(20):
            await scene()

    asyncio.run(main())


def allow(url: str) -> bool:
    return True


def fetch(site: Site, url: str, **more: object) -> Page | str:
    """Fetch a URL with `PORT` in it. Returns the code of an error."""
    found: list[Page | str] = []

    async def scene() -> None:
        options = {"allow_private": True, **more}
        client = WebClient(resolve=site.resolve, **options)  # type: ignore[arg-type]
        try:
            found.append(await client.fetch(url.replace("PORT", str(site.port)), allow))
        except ServerToolError as error:
            found.append(error.code)

    run_site(site, scene)
    return found[0]


def test_page_is_fetched() -> None:
    site = Site({"/a?b=1": reply(b"Hello.", "content-type: text/plain")})
    page = fetch(site, "http://example.com:PORT/a?b=1#part")
    assert isinstance(page, Page)
    assert (page.body, page.content_type) == (b"Hello.", "text/plain")
    assert f"host: example.com:{site.port}".encode() in site.requests[0]
    assert b"traceparent" not in site.requests[0]


def test_compressed_page_is_decompressed() -> None:
    site = Site({"/": reply(gzip.compress(b"Hello."), "content-encoding: gzip")})
    page = fetch(site, "http://example.com:PORT/")
    assert isinstance(page, Page)
    assert page.body == b"Hello."


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("private.example", ["127.0.0.1"]),
        ("both.example", ["93.184.215.14", "127.0.0.1"]),
        ("mapped.example", ["::ffff:127.0.0.1"]),
        ("metadata.example", ["169.254.169.254"]),
    ],
)
def test_private_addresses_are_not_allowed(host: str, addresses: list[str]) -> None:
    site = Site({"/": reply(b"secret")}, names={host: [addresses]})
    assert fetch(site, f"http://{host}:PORT/", allow_private=False) == "url_not_allowed"
    assert not site.requests


@pytest.mark.parametrize("url", ["http://127.0.0.1:PORT/", "http://[::1]:PORT/", "http://0x7f.1/"])
def test_private_literals_are_not_allowed(url: str) -> None:
    """The system's resolver is used, which knows all spellings of addresses."""
    site = Site({"/": reply(b"secret")})
    found: list[str] = []

    async def scene() -> None:
        with pytest.raises(ServerToolError) as failed:
            await WebClient().fetch(url.replace("PORT", str(site.port)), allow)
        found.append(failed.value.code)

    run_site(site, scene)
    assert found == ["url_not_allowed"]
    assert not site.requests


def test_second_dns_reply_has_no_effect() -> None:
    """The name resolves to a public address first and to a private one later (DNS rebinding)."""
    site = Site({"/": reply(b"secret")}, names={"rebind.example": [["192.0.2.1"], ["127.0.0.1"]]})
    connected: list[str] = []

    async def scene() -> None:
        async def connect(host: str, *_: object, **__: object) -> object:
            connected.append(host)
            raise OSError("no route")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "open_connection", connect)
            patch.setattr("dovetail.server_tools.web_client.is_public", lambda a: a != "127.0.0.1")
            with pytest.raises(ServerToolError):
                await WebClient(resolve=site.resolve).fetch("http://rebind.example/", allow)

    run_site(site, scene)
    assert site.resolved == ["rebind.example"]  # once
    assert connected == ["192.0.2.1"]  # the checked address, not the name


def test_redirect_to_a_private_address_is_not_allowed() -> None:
    redirect = reply(b"", "location: http://private.example:PORT/secret", status="302 Found")
    found: list[str] = []
    site = Site(names={"public.example": [["127.0.0.1"]], "private.example": [["10.0.0.1"]]})

    async def scene() -> None:
        site.pages["/"] = redirect.replace(b"PORT", str(site.port).encode())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dovetail.server_tools.web_client.is_public", lambda a: a == "127.0.0.1")
            with pytest.raises(ServerToolError) as failed:
                await WebClient(resolve=site.resolve).fetch(
                    f"http://public.example:{site.port}/", allow
                )
        found.append(failed.value.code)

    run_site(site, scene)
    assert found == ["url_not_allowed"]
    assert site.resolved == ["public.example", "private.example"]
    assert len(site.requests) == 1


def test_redirects_are_followed_and_checked() -> None:
    site = Site(
        {
            "/a": reply(b"", "location: /b", status="301 Moved"),
            "/b": reply(b"", "location: c", status="307 Temporary"),
            "/c": reply(b"End."),
            "/loop": reply(b"", "location: /loop", status="302 Found"),
            "/invalid": reply(b"", "location: http://[bad", status="302 Found"),
            "/file": reply(b"", "location: file:///etc/passwd", status="302 Found"),
        }
    )
    page = fetch(site, "http://example.com:PORT/a")
    assert isinstance(page, Page)
    assert page.url.endswith("/c")
    assert fetch(site, "http://example.com:PORT/loop") == "url_not_accessible"
    assert fetch(site, "http://example.com:PORT/invalid") == "url_not_accessible"
    assert fetch(site, "http://example.com:PORT/file") == "invalid_tool_input"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("ftp://example.com/", "invalid_tool_input"),
        ("file:///etc/passwd", "invalid_tool_input"),
        ("http://user:pass@example.com/", "invalid_tool_input"),
        ("http:///path", "invalid_tool_input"),
        ("http://example.com:99999/", "invalid_tool_input"),
        ("http://example.com/a b", "invalid_tool_input"),
        ("http://example.com/a\r\nx: y", "invalid_tool_input"),
        ("http://example.com/" + "a" * 3000, "url_too_long"),
        ("http://example.com:PORT/missing", "url_not_accessible"),
    ],
)
def test_invalid_urls(url: str, code: str) -> None:
    assert fetch(Site(), url) == code


def test_large_pages_are_rejected_without_reading_them() -> None:
    big = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 1024
    site = Site({"/": big, "/zip": reply(gzip.compress(b"x" * 5000), "content-encoding: gzip")})
    assert fetch(site, "http://example.com:PORT/", max_bytes=1000) == "content_too_large"
    assert fetch(site, "http://example.com:PORT/zip", max_bytes=1000) == "content_too_large"


def test_damaged_responses_are_errors() -> None:
    site = Site({"/": b"garbage\r\n\r\n", "/cut": b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx"})
    assert fetch(site, "http://example.com:PORT/") == "url_not_accessible"
    assert fetch(site, "http://example.com:PORT/cut") == "url_not_accessible"


def test_name_that_cannot_be_resolved_is_not_accessible() -> None:
    async def main() -> None:
        with pytest.raises(ServerToolError) as failed:
            await WebClient().fetch("http://a..b/", lambda url: True)
        assert failed.value.code == "url_not_accessible"

    asyncio.run(main())
