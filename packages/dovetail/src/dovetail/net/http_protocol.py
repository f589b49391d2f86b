"""HTTP/1.1 connections with limits on memory and time that a client can consume.

uvicorn, its parser and the operating system set no limits on endless headers or trailers, pipelined
requests, bodies that no handler reads any more, clients that never read, and clients that vanished
without closing the connection.
"""

import asyncio
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dovetail.net.open_files import max_connections
from dovetail.net.response_writer import DIRECT_WRITER_EXTENSION, DirectWriter

MAX_HEADER_BYTES = 64 << 10  # also of trailers, and of other data that is not part of a body
MAX_HEADERS = 512
MAX_PIPELINED_REQUESTS = 8  # requests that wait behind the running one
#: Status of a refused connection -> `reason` in the metrics. The application counts 426.
_REASONS = {
    b"400": "malformed",
    b"408": "slow_headers",
    b"417": "malformed",
    b"429": "pipelined",
    b"431": "large_headers",
    b"503": "connections",
}
_ABSOLUTE_URL = re.compile(rb"[a-z][a-z0-9+.-]*://([^/?#@]+)((?:[/?#].*)?)", re.IGNORECASE)
_HOP_BY_HOP = (b"connection", b"upgrade", b"http2-settings")


@dataclass(frozen=True)
class ConnectionTimeouts:
    """Time limits for clients.

    header_seconds: From the connection, or from the first byte of a request, to the end of its
        headers; also for a TLS handshake.
    body_linger_seconds: For the rest of a body after the response has been sent.
    stall_seconds: How long a client may read none of the data that waits to be sent.
    keepalive_idle_seconds, keepalive_interval_seconds, keepalive_probes: Settings of TCP
        keep-alive, which detects clients that vanished.
    """

    header_seconds: float = 20.0
    body_linger_seconds: float = 10.0
    stall_seconds: float = 300.0
    keepalive_idle_seconds: int = 60
    keepalive_interval_seconds: int = 15
    keepalive_probes: int = 4


DEFAULT_TIMEOUTS = ConnectionTimeouts()


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits. After a refusal, no further data is read."""

    _reading_headers = True
    _request_incomplete = False  # a request has started to arrive and is incomplete
    _body_received = False  # the data passed to `data_received` contains part of a body
    _body_begun = False  # part of the current request's body has arrived
    _bytes_without_body = 0  # bytes received since the last byte of a body
    _header_bytes = 0
    _upgrade_declined = False  # the request has an upgrade to an unsupported protocol
    _input_ignored = False
    _active_cycle: RequestResponseCycle | None = None
    _header_timer: asyncio.TimerHandle | None = None
    _linger_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        *args: Any,
        on_refused: Callable[[str], None] = lambda reason: None,
        timeouts: ConnectionTimeouts = DEFAULT_TIMEOUTS,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._timeouts = timeouts
        self._on_refused = on_refused  # called with the reason, a value of `_REASONS`

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > max_connections():
            self._refuse(b"503 Service Unavailable", b"retry-after: 5\r\n")
            return
        _enable_keepalive(transport, self._timeouts)
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up. uvicorn notifies only the last request, which may still be queued."""
        for timer in (self._header_timer, self._linger_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self.pipeline.clear()
        cycle = self._active_cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._input_ignored:
            return
        self._body_received = False
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            if not self._input_ignored:
                self._refuse(b"400 Bad Request")
        if self._input_ignored or self._body_received:
            return
        self._bytes_without_body += len(data)
        if self._bytes_without_body > MAX_HEADER_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")
        elif (
            not self._request_incomplete
            and not self._response_pending()
            and self._header_timer is None
        ):
            self._start_header_timer()  # empty lines must not keep an unused connection open

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self._upgrade_declined:
                self._reparse_without_upgrade(data[upgrade.args[0] :])
            else:
                # The application responds that WebSockets are disabled. The parser cannot know
                # whether the following data is a body or another request.
                self._refuse(b"426 Upgrade Required")

    def _reparse_without_upgrade(self, rest: bytes) -> None:
        """Parse a request again without its upgrade headers.

        The parser skips the body of a request with an upgrade, and Java's HTTP client offers an
        upgrade to HTTP/2 with every first request.
        """
        head = [self.scope["method"].encode(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            if name not in _HOP_BY_HOP:
                head += [name, b": ", value, b"\r\n"]
        self._upgrade_declined = False
        self.parser = httptools.HttpRequestParser(self)
        self._feed(b"".join([*head, b"\r\n", rest]))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reading_headers = self._request_incomplete = True
        self._body_begun = False
        self._bytes_without_body = self._header_bytes = 0
        if self._header_timer is None:
            self._start_header_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Trailers are ignored because a proxy in front has not checked them."""
        if not self._reading_headers:
            return
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES or len(self.headers) >= MAX_HEADERS:
            self._refuse(b"431 Request Header Fields Too Large")
            raise ValueError("too many headers")  # stops the parser
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._reading_headers = False
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        _check_framing_headers(self.headers, self.parser.get_http_version())
        if not all(map(_is_known_expectation, self.headers)):
            self._refuse(b"417 Expectation Failed")
            raise ValueError("unknown expectation")  # stops the parser
        if not self.url.startswith((b"/", b"*")) and self.parser.get_method() != b"CONNECT":
            self._replace_absolute_url()
        if len(self.pipeline) >= MAX_PIPELINED_REQUESTS:
            self._refuse(b"429 Too Many Requests")
            raise ValueError("too many pipelined requests")  # stops the parser
        if self.parser.should_upgrade() and self._get_upgrade() != b"websocket":
            method = self.scope["method"] = self.parser.get_method().decode()
            if method == "CONNECT":
                raise ValueError("CONNECT is not supported")
            self._upgrade_declined = True
            return
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:
            self.scope["extensions"] = {DIRECT_WRITER_EXTENSION: DirectWriter(self.cycle)}  # type: ignore[dict-item]

    def _replace_absolute_url(self) -> None:
        """Use the host of a URL in absolute form before that of the header, see RFC 9112, 3.2.2.

        Otherwise a proxy and this server could disagree on the host. Access checks require both
        hosts if they differ, so they are joined like the values of a repeated header.
        """
        parts = _ABSOLUTE_URL.fullmatch(self.url)
        if parts is None:
            raise ValueError("the request target must be a path or a URL without credentials")
        host, target = parts.groups()
        self.url = target if target.startswith(b"/") else b"/" + target
        others = [value for name, value in self.headers if name == b"host"]
        self.headers[:] = [header for header in self.headers if header[0] != b"host"]
        hosts = [host, *(value for value in others if value.lower() != host.lower())]
        self.headers.append((b"host", b", ".join(hosts)))

    def on_body(self, body: bytes) -> None:
        self._body_received = self._body_begun = True
        self._bytes_without_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._upgrade_declined:
            return
        self._request_incomplete = False
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._start_stall_timer()
        elif self._request_incomplete and self.cycle.response_complete:
            body_not_sent = self.expect_100_continue and not self._body_begun
            seconds = 0 if body_not_sent else self._timeouts.body_linger_seconds
            self._linger_timer = self.loop.call_later(seconds, self.transport.close)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._start_stall_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._active_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the WebSocket protocol, unless a response is pending."""
        if self._response_pending():
            self._refuse(b"400 Bad Request")
            return
        self._input_ignored = True
        super().handle_websocket_upgrade()

    def _response_pending(self) -> bool:
        return self._active_cycle is not None and not self._active_cycle.response_complete

    def close_when_idle(self) -> None:
        """Close the connection: immediately if it is idle, else after the running response."""
        if self.cycle is None or self._reading_headers:
            return  # a request is arriving and still gets its response
        if self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(
            self._timeouts.header_seconds, self._on_header_timeout
        )

    def _on_header_timeout(self) -> None:
        self._header_timer = None
        self._refuse(b"408 Request Timeout")

    def _start_stall_timer(self) -> None:
        """Start the stall timer. Even a closed connection waits until its last bytes are read."""
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(
                self._timeouts.stall_seconds, self.transport.abort
            )

    def _refuse(self, status: bytes, headers: bytes = b"") -> None:
        """Close the connection, but first finish the response to a complete request, if any."""
        self._input_ignored = True
        if (reason := _REASONS.get(status[:3])) is not None:
            self._on_refused(reason)
        self.pipeline.clear()
        cycle = self._active_cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:
                cycle.keep_alive = False
                return
            if cycle.response_started:
                self.transport.close()
                self._start_stall_timer()
                return
        if not self.transport.is_closing():
            head = b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n"
            self.transport.write(head + headers + b"\r\n")
            self.transport.close()
            self._start_stall_timer()


def _check_framing_headers(headers: list[tuple[bytes, bytes]], version: str) -> None:
    """Raise `ValueError`, which stops the parser, for headers that the parser does not check.

    Without exactly one Host, a proxy and this server could route a request differently. Of the
    transfer codings only `chunked` is decoded, so the body would be wrong with any other. HTTP/1.0
    does not have transfer codings, see RFC 9112, 6.1.
    """
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise ValueError(f"the request must have one Host header, got {hosts}")
    for name, value in headers:
        if name != b"transfer-encoding":
            continue
        if value.strip().lower() != b"chunked" or version == "1.0":
            raise ValueError("the only supported transfer coding is chunked, in HTTP/1.1")


def _is_known_expectation(header: tuple[bytes, bytes]) -> bool:
    name, value = header
    return name != b"expect" or value.strip().lower() == b"100-continue"


def _enable_keepalive(transport: asyncio.Transport, timeouts: ConnectionTimeouts) -> None:
    """Enable TCP keep-alive, which detects vanished clients even when no data is sent."""
    client_socket = transport.get_extra_info("socket")
    if client_socket is None or client_socket.family == socket.AF_UNIX:
        return
    client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", timeouts.keepalive_idle_seconds),
        ("TCP_KEEPINTVL", timeouts.keepalive_interval_seconds),
        ("TCP_KEEPCNT", timeouts.keepalive_probes),
        ("TCP_USER_TIMEOUT", int(timeouts.stall_seconds * 1000)),
    ):
        if hasattr(socket, name):  # the options differ between operating systems
            client_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
