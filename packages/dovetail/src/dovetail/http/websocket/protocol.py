"""uvicorn's WebSocket protocol with limits on memory and time that a client can consume.

Without them, an endless fragmented message, a client that never reads, or one that vanished without
closing the connection would hold memory forever.
"""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from dovetail.http.memory import request_memory
from dovetail.http.options import DEFAULT_WEBSOCKET_OPTIONS, WebSocketOptions
from dovetail.http.websocket.messages import (
    MIN_LARGE_MESSAGE_BYTES,
    encode_frame,
    single_message,
    split_messages,
)

#: Key under which the `extensions` of an ASGI scope offer a `WebSocketTransport`.
WEBSOCKET_TRANSPORT_EXTENSION = "dovetail.carrier"
CLOSE_POLICY_VIOLATION = 1008
CLOSE_MESSAGE_TOO_BIG = 1009
CLOSE_TRY_AGAIN_LATER = 1013
_BAD_REQUEST_RESPONSE = (
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)

_log = logging.getLogger(__name__)
_log.setLevel(logging.WARNING)
# uvicorn logs this for every refused WebSocket. Refusals are already logged as requests, and
# throttled there so that unauthenticated clients cannot fill the log.
_INCOMPLETE_HANDSHAKE = "ASGI callable returned without completing handshake."
_log.addFilter(lambda record: record.msg != _INCOMPLETE_HANDSHAKE)


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket connection.

    client_closed: Whether the client has closed the connection or vanished.
    """

    client_closed = False
    _message_timer: asyncio.TimerHandle | None = None  # runs while a message is incomplete
    _held_bytes = 0  # bytes of an incomplete message

    def __init__(
        self, *args: Any, options: WebSocketOptions = DEFAULT_WEBSOCKET_OPTIONS, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._options = options
        # Both loggers would log client addresses, and message contents at the debug level.
        self.logger = _log
        self.conn.logger = _log
        self.conn.debug = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.client_closed = True
        self._stop_timer()
        self._set_held_bytes(0)
        super().connection_lost(exc)
        self.frames = []

    def handle_close(self, event: Frame) -> None:
        self.client_closed = True
        super().handle_close(event)

    def shutdown(self) -> None:
        self.client_closed = True
        super().shutdown()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            extensions: dict[str, Any] = {
                **(self.scope["extensions"] or {}),
                WEBSOCKET_TRANSPORT_EXTENSION: WebSocketTransport(self),
            }
            self.scope["extensions"] = extensions

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= self._options.max_fragments:
            self.conn.fail(CLOSE_MESSAGE_TOO_BIG, "too many fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def data_received(self, data: bytes) -> None:
        """Handle received data. A handshake that cannot be parsed gets a 400 here."""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(_BAD_REQUEST_RESPONSE)
            self.transport.close()
        elif not (self.frames or self.conn.reader.buffer):
            self._stop_timer()
            self._set_held_bytes(0)
        else:
            self._await_message_end()

    def handle_ping(self) -> None:
        """Send a pong, unless the client does not read: pongs would accumulate."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def _await_message_end(self) -> None:
        if self._message_timer is None:
            self._message_timer = self.loop.call_later(
                self._options.message_timeout_seconds, self._on_message_timeout
            )
        self._set_held_bytes(len(self.conn.reader.buffer) + sum(map(len, self.frames)))
        if self.handshake_complete and request_memory.is_exceeded_by(
            self._held_bytes, self.config.ws_max_size
        ):
            self.conn.fail(CLOSE_TRY_AGAIN_LATER, "request memory limit reached; retry later")
            self.handle_parser_exception()

    def _set_held_bytes(self, size: int) -> None:
        if not self.client_closed or not size:
            request_memory.total_bytes += size - self._held_bytes
            self._held_bytes = size

    def send_receive_event_to_app(self) -> None:
        self._stop_timer()
        if sum(map(len, self.frames)) >= MIN_LARGE_MESSAGE_BYTES:
            self.curr_msg_data_type = "bytes"  # the application decodes large texts in a thread
        super().send_receive_event_to_app()

    def _on_message_timeout(self) -> None:
        """Close the connection: its message did not arrive in time."""
        if self.client_closed or self.close_sent or not self.handshake_complete:
            self.transport.abort()
            return
        self.conn.fail(CLOSE_POLICY_VIOLATION, "timeout while receiving a message")
        self.handle_parser_exception()

    def _stop_timer(self) -> None:
        if self._message_timer is not None:
            self._message_timer.cancel()
            self._message_timer = None

    def keepalive_timeout(self) -> None:
        """Abort the connection: a client that does not respond to pings does not read either."""
        super().keepalive_timeout()
        self.transport.abort()


class WebSocketTransport:
    """Access to the connection for the application."""

    __slots__ = ("_protocol",)

    def __init__(self, protocol: BoundedWebSocketProtocol) -> None:
        self._protocol = protocol

    def open_writer(self, suffix: bytes) -> "DirectWebSocketWriter":
        """Open a writer for the frames of one stream; each of its events ends with `suffix`."""
        return DirectWebSocketWriter(self._protocol, suffix)


class DirectWebSocketWriter:
    """Write event stream frames as messages to the connection. `write` runs for every token.

    Data written after a disconnect is dropped.
    """

    __slots__ = ("_is_writable", "_protocol", "_suffix", "_write")

    def __init__(self, protocol: BoundedWebSocketProtocol, suffix: bytes) -> None:
        self._protocol = protocol
        self._is_writable = protocol.writable.is_set
        self._write = protocol.transport.write
        self._suffix = suffix

    def write(self, frames: bytes) -> bool:
        protocol = self._protocol
        if not (protocol.client_closed or protocol.close_sent):
            message = None if self._suffix else single_message(frames)
            if message is not None:
                self._write(encode_frame(message))
            else:
                self._write(
                    b"".join([encode_frame(part) for part in split_messages(frames, self._suffix)])
                )
        return self._is_writable()

    @property
    def full(self) -> bool:
        return not self._is_writable()

    async def drain(self) -> None:
        await self._protocol.writable.wait()
