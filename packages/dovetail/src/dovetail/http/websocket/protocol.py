"""The connection under a socket: uvicorn's, with bounds that it leaves to others.

A message in pieces without end, a client that never reads, one that is gone and never said so: each
would hold memory for good.
"""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from dovetail.http.memory import held
from dovetail.http.websocket.wire import framed, lone_message, messages

#: Under this name the connection is offered, among the `extensions` of ASGI's scope.
CARRIER = "dovetail.carrier"
PING_INTERVAL = 30.0  # seconds between two signs of life that are asked for
PING_TIMEOUT = 60.0  # seconds in which a client has to show one
MAX_PIECES = 4096  # of one message
MESSAGE_TIMEOUT = 120.0  # seconds from the first byte of a message to its last
BROKEN_RULE = 1008
TOO_BIG = 1009
TRY_LATER = 1013
_UNREADABLE = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

_log = logging.getLogger(__name__)
_log.setLevel(logging.WARNING)
# uvicorn says so of every socket that is refused. Each has its line already, where it may have one:
# strangers must not fill the log.
_FORGOTTEN = "ASGI callable returned without completing handshake."
_log.addFilter(lambda record: record.msg != _FORGOTTEN)


class BoundedSocket(WebSocketsSansIOProtocol):
    """One connection. `over`: the client has closed it, or is gone."""

    over = False
    _slow: asyncio.TimerHandle | None = None  # runs while a message has begun to come
    _held = 0  # bytes of a message that is not here as a whole

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        # Both would log who came from where, and at their lowest level what was said.
        self.logger = _log
        self.conn.logger = _log
        self.conn.debug = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        self._stop_timer()
        self._hold(0)
        super().connection_lost(exc)
        self.frames = []

    def handle_close(self, event: Frame) -> None:
        self.over = True
        super().handle_close(event)

    def shutdown(self) -> None:
        self.over = True
        super().shutdown()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            offered: dict[str, Any] = {**(self.scope["extensions"] or {}), CARRIER: Carrier(self)}
            self.scope["extensions"] = offered

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_PIECES:
            self.conn.fail(TOO_BIG, "too many pieces")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def data_received(self, data: bytes) -> None:
        """Also where the request for a socket cannot be read: nobody else answers it then."""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(_UNREADABLE)
            self.transport.close()
        elif not (self.frames or self.conn.reader.buffer):
            self._stop_timer()
            self._hold(0)
        else:
            self._wait_for_rest()

    def handle_ping(self) -> None:
        """Who asks for signs of life and does not read them would have them wait here for ever."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def _wait_for_rest(self) -> None:
        if self._slow is None:
            self._slow = self.loop.call_later(MESSAGE_TIMEOUT, self._too_slow)
        self._hold(len(self.conn.reader.buffer) + sum(map(len, self.frames)))
        if self.handshake_complete and held.is_too_much(self._held, self.config.ws_max_size):
            self.conn.fail(TRY_LATER, "too much is being sent at once")
            self.handle_parser_exception()

    def _hold(self, size: int) -> None:
        if not self.over or not size:
            held.size += size - self._held
            self._held = size

    def send_receive_event_to_app(self) -> None:
        self._stop_timer()
        super().send_receive_event_to_app()

    def _too_slow(self) -> None:
        """What has come of a message would be held for as long as its client likes."""
        if self.over or self.close_sent or not self.handshake_complete:
            self.transport.abort()
            return
        self.conn.fail(BROKEN_RULE, "a message must come faster")
        self.handle_parser_exception()

    def _stop_timer(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def keepalive_timeout(self) -> None:
        """Who does not answer does not read either: what waits to be sent would wait for ever."""
        super().keepalive_timeout()
        self.transport.abort()


class Carrier:
    """The connection, as the application sees it."""

    __slots__ = ("_protocol",)

    def __init__(self, protocol: BoundedSocket) -> None:
        self._protocol = protocol

    def outlet(self, lane: bytes) -> "Direct":
        """Where the frames of one stream leave; `lane` is what each of its events ends with."""
        return Direct(self._protocol, lane)


class Direct:
    """Frames become messages, straight to the connection. `write` runs for every token.

    What is written when the client has hung up is nobody's.
    """

    __slots__ = ("_has_room", "_lane", "_protocol", "_write")

    def __init__(self, protocol: BoundedSocket, lane: bytes) -> None:
        self._protocol = protocol
        self._has_room = protocol.writable.is_set
        self._write = protocol.transport.write
        self._lane = lane

    def write(self, frames: bytes) -> bool:
        protocol = self._protocol
        if not (protocol.over or protocol.close_sent):
            message = None if self._lane else lone_message(frames)
            if message is not None:
                self._write(framed(message))
            else:
                self._write(b"".join([framed(one) for one in messages(frames, self._lane)]))
        return self._has_room()

    @property
    def full(self) -> bool:
        return not self._has_room()

    async def drain(self) -> None:
        await self._protocol.writable.wait()
