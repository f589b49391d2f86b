"""One connection: HTTP/1.1 that bounds what a client can make grow, hold open or leave hanging.

uvicorn leaves these to its parser and to the system, and neither bounds them: headers or trailers
without end, requests queued behind one that runs, bodies that nobody waits for any more, clients
that never read, clients that are gone and never said so.
"""

import asyncio
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dovetail.net.response_writer import DIRECT_WRITER_EXTENSION, DirectWriter

MAX_HEADER_BYTES = 64 << 10  # also of trailers, and of all that comes without a byte of a body
MAX_HEADERS = 512
MAX_PIPELINED_REQUESTS = 8  # requests that wait behind the one that is answered
MAX_OPEN_FILES = 65536  # that a process asks the system for, where it may
RESERVED_FILES = 64  # file descriptors that are kept from clients: for engines, stores and logs
#: What a connection is refused with, and counted as. A 426 is the application's: counted there.
_REASONS = {
    b"400": "malformed",
    b"408": "slow_headers",
    b"429": "pipelined",
    b"431": "large_headers",
    b"503": "connections",
}
_HOP_BY_HOP = (b"connection", b"upgrade", b"http2-settings")


@dataclass(frozen=True)
class ConnectionTimeouts:
    """How long a client may take.

    `header_seconds`: from the connection, or from the first byte of a request, to the end of its
    headers; also for a TLS handshake.
    `body_linger_seconds`: for the rest of a body whose request was already answered.
    `stall_seconds`: without reading any of the data that waits to be sent.
    `keepalive_idle_seconds`, `keepalive_interval_seconds`, `keepalive_probes`: of TCP keep-alive,
    which finds clients that are gone.
    """

    header_seconds: float = 20.0
    body_linger_seconds: float = 10.0
    stall_seconds: float = 300.0
    keepalive_idle_seconds: int = 60
    keepalive_interval_seconds: int = 15
    keepalive_probes: int = 4


DEFAULT_TIMEOUTS = ConnectionTimeouts()


class BoundedHttpProtocol(HttpToolsProtocol):
    """What is refused is refused once: nothing that follows on the connection is read."""

    _reading_headers = True
    _request_incomplete = False  # a request has begun to come, and not all of it is here
    _body_received = False  # something of a body has come: in this piece, in this request
    _body_begun = False
    _bytes_without_body = 0  # bytes since the last one of a body
    _header_bytes = 0
    _upgrade_declined = False  # the request that comes asks for a protocol that is not spoken here
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
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._timeouts = timeouts
        self._on_refused = on_refused  # hears why, in one word

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > max_connections():
            self._refuse(b"503 Service Unavailable", b"retry-after: 5\r\n")
            return
        _enable_keepalive(transport, self._timeouts)
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn tells only the request that came last, which may be waiting behind another."""
        for timer in (self._header_timer, self._linger_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self.pipeline.clear()
        running = self._active_cycle
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
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
            self._start_header_timer()  # empty lines do not keep an unused connection open

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self._upgrade_declined:
                self._reparse_without_upgrade(data[upgrade.args[0] :])
            else:
                # The application says that there are no sockets; whether what follows is a body
                # or another request, the parser cannot tell.
                self._refuse(b"426 Upgrade Required")

    def _reparse_without_upgrade(self, rest: bytes) -> None:
        """The parser leaves out the body of a request that asks for another protocol.

        Java's client asks for HTTP/2 so: without that wish, it is a request like any other.
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
        """What stands behind a body is no header: a proxy in front has not looked at it."""
        if not self._reading_headers:
            return
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES or len(self.headers) >= MAX_HEADERS:
            self._refuse(b"431 Request Header Fields Too Large")
            raise ValueError("too many headers")  # for the parser: it stops here
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._reading_headers = False
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        if len(self.pipeline) >= MAX_PIPELINED_REQUESTS:
            self._refuse(b"429 Too Many Requests")
            raise ValueError("too many requests at once")  # for the parser: it stops here
        if self.parser.should_upgrade() and self._get_upgrade() != b"websocket":
            method = self.scope["method"] = self.parser.get_method().decode()
            if method == "CONNECT":
                raise ValueError("no proxy")
            self._upgrade_declined = True
            return
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:
            self.scope["extensions"] = {DIRECT_WRITER_EXTENSION: DirectWriter(self.cycle)}  # type: ignore[dict-item]

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
            never = self.expect_100_continue and not self._body_begun
            seconds = 0 if never else self._timeouts.body_linger_seconds
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
        """From here on the connection is a socket's, unless an answer is still owed on it."""
        if self._response_pending():
            self._refuse(b"400 Bad Request")
            return
        self._input_ignored = True
        super().handle_websocket_upgrade()

    def _response_pending(self) -> bool:
        return self._active_cycle is not None and not self._active_cycle.response_complete

    def close_when_idle(self) -> None:
        """The connection is used no more: at once if nothing is under way, else after that."""
        if self.cycle is None or self._reading_headers:
            return  # a request comes in, and shall be answered
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
        """A closed connection, too, stays until its last bytes are read."""
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(
                self._timeouts.stall_seconds, self.transport.abort
            )

    def _refuse(self, status: bytes, more: bytes = b"") -> None:
        """Ends the connection; where a whole request waits for its answer, behind that one."""
        self._input_ignored = True
        if (reason := _REASONS.get(status[:3])) is not None:
            self._on_refused(reason)
        self.pipeline.clear()
        running = self._active_cycle
        if running is not None and not running.response_complete:
            if not running.more_body:
                running.keep_alive = False
                return
            if running.response_started:
                self.transport.close()
                self._start_stall_timer()
                return
        if not self.transport.is_closing():
            head = b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n"
            self.transport.write(head + more + b"\r\n")
            self.transport.close()
            self._start_stall_timer()


def raise_file_limit() -> None:
    """Takes what the system grants for the asking: each client is a file, and 1024 are few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def max_connections() -> int:
    """How many clients may be connected, by what the system lets this process open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft - RESERVED_FILES


def _enable_keepalive(transport: asyncio.Transport, timeouts: ConnectionTimeouts) -> None:
    """Has the system find out about clients that have vanished, also where nothing is sent."""
    connected = transport.get_extra_info("socket")
    if connected is None or connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", timeouts.keepalive_idle_seconds),
        ("TCP_KEEPINTVL", timeouts.keepalive_interval_seconds),
        ("TCP_KEEPCNT", timeouts.keepalive_probes),
        ("TCP_USER_TIMEOUT", int(timeouts.stall_seconds * 1000)),
    ):
        if hasattr(socket, name):  # not every system has all of them
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
