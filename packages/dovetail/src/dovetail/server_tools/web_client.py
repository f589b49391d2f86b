"""Fetch a URL that a model chose, without reaching addresses that only this machine can reach.

The name is resolved once, every address is checked, and the connection goes to exactly the checked
address, so that a second DNS reply cannot replace it. Redirects are checked like the first URL.
"""

import asyncio
import ipaddress
import socket
import ssl
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import SplitResult, urljoin, urlsplit

import h11

from dovetail.server_tools.search import ServerToolError

MAX_URL_CHARS = 2_048
MAX_REDIRECTS = 5
MAX_PAGE_BYTES = 10 << 20
CONNECT_TIMEOUT_SECONDS = 10.0
_MAX_HEAD_BYTES = 1 << 17
_READ_BYTES = 1 << 16
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_USER_AGENT = "dovetail (web_fetch)"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host, as text."""


@dataclass(frozen=True)
class Page:
    """A fetched page. `url` is the last one if there were redirects."""

    url: str
    content_type: str
    body: bytes


async def resolve_host(host: str, port: int) -> list[str]:
    """Resolve a host with the system's resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def is_public(address: str) -> bool:
    """Return whether an address is reachable from the whole internet, also if it embeds another."""
    try:
        ip: Address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(_is_public(one) for one in (ip, *_embedded(ip)))


def _is_public(ip: Address) -> bool:
    return ip.is_global and not (
        ip.is_multicast
        or ip.is_reserved
        or ip.is_unspecified
        or ip.is_loopback
        or (isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local)
    )


def _embedded(ip: Address) -> list[Address]:
    """Return the IPv4 addresses within an IPv6 address: translated, tunneled or mapped."""
    if isinstance(ip, ipaddress.IPv4Address):
        return []
    found: list[Address | None] = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
    if ip in _NAT64:
        found.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
    return [one for one in found if one is not None]


@dataclass(frozen=True)
class WebClient:
    """Fetches pages. `allow_private`: also from addresses that are not public."""

    allow_private: bool = False
    max_bytes: int = MAX_PAGE_BYTES
    resolve: Resolve = field(default=resolve_host)

    async def fetch(self, url: str, check: Callable[[str], bool]) -> Page:
        """Fetch a URL. `check` returns whether a URL, also of a redirect, is permitted.

        Raises `ServerToolError`.
        """
        for _ in range(MAX_REDIRECTS + 1):
            parts = _split(url)
            if not check(url):
                raise ServerToolError("url_not_allowed")
            try:
                found = await self._get(parts)
                url = url if isinstance(found, Page) else urljoin(url, found)
            except (OSError, ValueError, h11.ProtocolError, zlib.error) as error:
                # Invalid names and redirects raise ValueError.
                raise ServerToolError("url_not_accessible") from error
            if isinstance(found, Page):
                return found
        raise ServerToolError("url_not_accessible")

    async def _get(self, parts: SplitResult) -> "Page | str":
        """Return the page, or the URL of a redirect."""
        reader, writer = await self._connect(parts)
        try:
            exchange = _Exchange(reader, writer, self.max_bytes)
            return await exchange.get(parts)
        finally:
            writer.close()

    async def _connect(
        self, parts: SplitResult
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, tls = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        addresses = await self.resolve(host, port)
        usable = [one for one in addresses if self.allow_private or is_public(one)]
        if not usable or len(usable) < len(addresses):
            raise ServerToolError("url_not_allowed" if addresses else "url_not_accessible")
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            return await asyncio.open_connection(
                usable[0],
                port,
                ssl=_ssl_context() if tls else None,
                server_hostname=host if tls else None,
                limit=_READ_BYTES,
            )


class _Exchange:
    """One request and its response on a connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_bytes: int
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._max_bytes = max_bytes
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)

    async def get(self, parts: SplitResult) -> Page | str:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {
            "host": parts.netloc.rpartition("@")[2],
            "user-agent": _USER_AGENT,
            "accept": "text/html, text/plain, application/pdf, */*;q=0.5",
            "accept-encoding": "identity",
            "connection": "close",
        }
        request = h11.Request(method="GET", target=target, headers=list(headers.items()))
        self._writer.write(
            (self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b"")
        )
        await self._writer.drain()
        head = await self._next()
        while isinstance(head, h11.InformationalResponse):
            head = await self._next()
        if not isinstance(head, h11.Response):
            raise ServerToolError("url_not_accessible")
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        if head.status_code in _REDIRECTS and fields.get("location"):
            return fields["location"]
        if head.status_code != 200:
            code = "too_many_requests" if head.status_code == 429 else "url_not_accessible"
            raise ServerToolError(code)
        body = await self._read_body(fields.get("content-encoding", "").strip().lower())
        return Page(parts.geturl(), fields.get("content-type", ""), body)

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(_READ_BYTES))
        return event

    async def _read_body(self, encoding: str) -> bytes:
        if encoding not in ("", "identity", "gzip", "x-gzip"):
            raise ServerToolError("unsupported_content_type")
        unzip = zlib.decompressobj(wbits=31) if "gzip" in encoding else None
        body = bytearray()
        while isinstance(event := await self._next(), h11.Data):
            data = bytes(event.data)
            body += data if unzip is None else unzip.decompress(data, self._max_bytes + 1)
            if len(body) > self._max_bytes:
                raise ServerToolError("content_too_large")
        return bytes(body)


def _split(url: str) -> SplitResult:
    """Split a URL of the web. Credentials are never sent."""
    if len(url) > MAX_URL_CHARS:
        raise ServerToolError("url_too_long")
    try:
        # Other characters must be escaped in a request.
        parts = urlsplit(url.encode("ascii").decode() if url.isascii() else _quote(url))
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.username is None
        port_valid = parts.port is None or parts.port > 0
    except (ValueError, UnicodeError) as error:
        raise ServerToolError("invalid_tool_input") from error
    if not (valid and port_valid) or any(c.isspace() or c < " " for c in parts.geturl()):
        raise ServerToolError("invalid_tool_input")
    return parts


def _quote(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.encode("idna").decode()
    quoted = "".join(
        c if c.isascii() else "".join(f"%{byte:02X}" for byte in c.encode())
        for c in parts._replace(netloc="", scheme="").geturl()
    )
    return f"{parts.scheme}://{host}{quoted}"


@cache
def _ssl_context() -> ssl.SSLContext:
    return ssl.create_default_context()
