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
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dovetail.net.direct import DIRECT, Direct

MAX_HEADER_BYTES = 64 << 10  # also of trailers, and of all that comes without a byte of a body
MAX_HEADERS = 512
MAX_PIPELINED = 8  # requests that wait behind the one that is answered
HEADER_TIMEOUT = 20.0  # seconds from the connection, or a request's first byte, to its headers' end
LINGER = 10.0  # seconds that the rest of a body may take when its request is answered already
STALL_TIMEOUT = 300.0  # seconds in which a client must read something of what waits for it
MOST_FILES = 65536  # that a process asks the system for, where it may
SPARE_FILES = 64  # file descriptors that are kept from clients: for engines, stores and logs
#: What a connection is refused with, and counted as. A 426 is the application's: counted there.
_REASONS = {
    b"400": "malformed",
    b"408": "slow_headers",
    b"429": "pipelined",
    b"431": "large_headers",
    b"503": "connections",
}
_HOP_BY_HOP = (b"connection", b"upgrade", b"http2-settings")
_KEEPALIVE = (60, 15, 4)  # seconds of silence, seconds between probes, probes without an answer


class BoundedHttp(HttpToolsProtocol):
    """What is refused is refused once: nothing that follows on the connection is read."""

    _heading = True
    _within = False  # a request has begun to come, and not all of it is here
    _fed = False  # something of a body has come: in this piece, in this request
    _body_begun = False
    _bare = 0  # bytes since the last one of a body
    _head_bytes = 0
    _declined = False  # the request that comes asks for a protocol that is not spoken here
    _deaf = False
    _running: RequestResponseCycle | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _linger_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def __init__(
        self, *args: Any, refused: Callable[[str], None] = lambda reason: None, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self._refused = refused  # hears why, in one word

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            self._refuse(b"503 Service Unavailable", b"retry-after: 5\r\n")
            return
        _probe(transport)
        self._time_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn tells only the request that came last, which may be waiting behind another."""
        for timer in (self._head_timer, self._linger_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self.pipeline.clear()
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._fed = False
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            if not self._deaf:
                self._refuse(b"400 Bad Request")
        if self._deaf or self._fed:
            return
        self._bare += len(data)
        if self._bare > MAX_HEADER_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")
        elif not self._within and not self._owes() and self._head_timer is None:
            self._time_headers()  # empty lines do not keep an unused connection open

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self._declined:
                self._begin_again(data[upgrade.args[0] :])
            else:
                # The application says that there are no sockets; whether what follows is a body
                # or another request, the parser cannot tell.
                self._refuse(b"426 Upgrade Required")

    def _begin_again(self, rest: bytes) -> None:
        """The parser leaves out the body of a request that asks for another protocol.

        Java's client asks for HTTP/2 so: without that wish, it is a request like any other.
        """
        head = [self.scope["method"].encode(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            if name not in _HOP_BY_HOP:
                head += [name, b": ", value, b"\r\n"]
        self._declined = False
        self.parser = httptools.HttpRequestParser(self)
        self._feed(b"".join([*head, b"\r\n", rest]))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._heading = self._within = True
        self._body_begun = False
        self._bare = self._head_bytes = 0
        if self._head_timer is None:
            self._time_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        """What stands behind a body is no header: a proxy in front has not looked at it."""
        if not self._heading:
            return
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEADER_BYTES or len(self.headers) >= MAX_HEADERS:
            self._refuse(b"431 Request Header Fields Too Large")
            raise ValueError("too many headers")  # for the parser: it stops here
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._heading = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(b"429 Too Many Requests")
            raise ValueError("too many requests at once")  # for the parser: it stops here
        if self.parser.should_upgrade() and self._get_upgrade() != b"websocket":
            method = self.scope["method"] = self.parser.get_method().decode()
            if method == "CONNECT":
                raise ValueError("no proxy")
            self._declined = True
            return
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:
            self.scope["extensions"] = {DIRECT: Direct(self.cycle)}  # type: ignore[dict-item]

    def on_body(self, body: bytes) -> None:
        self._fed = self._body_begun = True
        self._bare = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._declined:
            return
        self._within = False
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()
        elif self._within and self.cycle.response_complete:
            never = self.expect_100_continue and not self._body_begun
            seconds = 0 if never else LINGER
            self._linger_timer = self.loop.call_later(seconds, self.transport.close)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_reader()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection is a socket's, unless an answer is still owed on it."""
        if self._owes():
            self._refuse(b"400 Bad Request")
            return
        self._deaf = True
        super().handle_websocket_upgrade()

    def _owes(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def retire(self) -> None:
        """The connection is used no more: at once if nothing is under way, else after that."""
        if self.cycle is None or self._heading:
            return  # a request comes in, and shall be answered
        if self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _time_headers(self) -> None:
        self._head_timer = self.loop.call_later(HEADER_TIMEOUT, self._too_slow)

    def _too_slow(self) -> None:
        self._head_timer = None
        self._refuse(b"408 Request Timeout")

    def _watch_reader(self) -> None:
        """A closed connection, too, stays until its last bytes are read."""
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALL_TIMEOUT, self.transport.abort)

    def _refuse(self, status: bytes, more: bytes = b"") -> None:
        """Ends the connection; where a whole request waits for its answer, behind that one."""
        self._deaf = True
        if (reason := _REASONS.get(status[:3])) is not None:
            self._refused(reason)
        self.pipeline.clear()
        running = self._running
        if running is not None and not running.response_complete:
            if not running.more_body:
                running.keep_alive = False
                return
            if running.response_started:
                self.transport.close()
                self._watch_reader()
                return
        if not self.transport.is_closing():
            head = b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n"
            self.transport.write(head + more + b"\r\n")
            self.transport.close()
            self._watch_reader()


def raise_file_limit() -> None:
    """Takes what the system grants for the asking: each client is a file, and 1024 are few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """How many clients may be connected, by what the system lets this process open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft - SPARE_FILES


def _probe(transport: asyncio.Transport) -> None:
    """Has the system find out about clients that have vanished, also where nothing is sent."""
    connected = transport.get_extra_info("socket")
    if connected is None or connected.family == socket.AF_UNIX:
        return
    idle, interval, count = _KEEPALIVE
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", idle),
        ("TCP_KEEPINTVL", interval),
        ("TCP_KEEPCNT", count),
        ("TCP_USER_TIMEOUT", int(STALL_TIMEOUT * 1000)),
    ):
        if hasattr(socket, name):  # not every system has all of them
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
