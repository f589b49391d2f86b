"""Serve a token engine over the step protocol."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import msgspec

from dovetail.engines.engine import RetainingEngine, TokenDelta, TokenEngine
from dovetail.engines.steps.framing import MAX_FRAME_BYTES, FrameReader, FrameTooLarge, encode_frame
from dovetail.engines.steps.messages import (
    PROTOCOL_VERSION,
    Abort,
    EngineDescription,
    Generate,
    HealthCheck,
    HealthReport,
    Hello,
    Rejection,
    Retain,
    Step,
    StreamFailure,
    Welcome,
    check_hello,
    decode_client_message,
    describe_facts,
    to_failure,
    to_request,
)
from dovetail_model import EngineUnavailable, InvalidEngineResponse

HELLO_TIMEOUT_SECONDS = 10.0
#: Until the key was accepted, clients cannot make the engine buffer more.
MAX_HELLO_BYTES = 1 << 16
#: Clients regard an engine that sends nothing for a multiple of this time as dead.
REPORT_INTERVAL_SECONDS = 5.0
#: How long a client on another machine may leave data unacknowledged, or unread, before the
#: connection is closed.
UNACKNOWLEDGED_TIMEOUT_SECONDS = 30.0
#: The connection of a client that has not read more than this is closed. vLLM does not wait for it.
MAX_UNREAD_BYTES = 64 << 20


class StepServer:
    """Serves an engine that has started.

    `key`: clients must send it.
    `on_engine_dead`: called when a generation failed and the engine will not recover.
    """

    def __init__(
        self,
        engine: TokenEngine,
        description: EngineDescription,
        key: str,
        on_engine_dead: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine = engine
        self.description = description
        self.key = key
        self.on_engine_dead = on_engine_dead
        self.connections: set[StepServerConnection] = set()

    def disconnect_all(self) -> None:
        """Close all connections, which aborts their streams."""
        for connection in tuple(self.connections):
            connection.close()

    async def serve(
        self, listener: socket.socket, tls: ssl.SSLContext | None = None
    ) -> asyncio.AbstractServer:
        """Accept connections on a socket that is bound and listening."""
        loop = asyncio.get_running_loop()
        if listener.family == getattr(socket, "AF_UNIX", None):
            return await loop.create_unix_server(lambda: StepServerConnection(self), sock=listener)
        return await loop.create_server(
            lambda: StepServerConnection(self),
            sock=listener,
            ssl=tls,
            ssl_handshake_timeout=HELLO_TIMEOUT_SECONDS if tls is not None else None,
        )


class StepServerConnection(asyncio.Protocol):
    """One client and its streams. The deltas of one pass of the event loop are one message."""

    _transport: asyncio.Transport

    def __init__(self, server: StepServer) -> None:
        self._server = server
        self._reader = FrameReader(MAX_HELLO_BYTES)
        self._accepted = False
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._health_checks: set[asyncio.Task[None]] = set()
        self.streams: list[int] = []
        self.deltas: list[TokenDelta] = []
        self.failures: list[StreamFailure] = []
        self.flush_scheduled = False
        self.paused = False  # whether the client does not read fast enough
        self._resumed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if (connected := transport.get_extra_info("socket")) is not None:
            _configure_socket(connected)
        self._server.connections.add(self)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(HELLO_TIMEOUT_SECONDS, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                if self._transport.is_closing():
                    return  # it was rejected
                self._handle(decode_client_message(frame))
        except (FrameTooLarge, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._transport.abort()  # not a client of this protocol

    def connection_lost(self, error: Exception | None) -> None:
        """Abort the streams of the client."""
        self._server.connections.discard(self)
        self._timer.cancel()
        self._resumed.set()
        for task in (*self._tasks.values(), *self._health_checks):
            task.cancel()

    def close(self) -> None:
        self._transport.close()

    def pause_writing(self) -> None:
        self.paused = True
        self._resumed.clear()

    def resume_writing(self) -> None:
        self.paused = False
        self._resumed.set()

    async def wait_resumed(self) -> None:
        """Wait until the client has read what was sent."""
        await self._resumed.wait()

    def flush(self) -> None:
        """Send everything that the streams have produced since the last call, as one message."""
        self.flush_scheduled = False
        step = Step(self.streams, self.deltas, self.failures)
        self.streams, self.deltas, self.failures = [], [], []
        if self._transport.is_closing():
            return
        if self.paused and self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._transport.abort()  # which aborts its streams
            return
        self._transport.write(encode_frame(step))

    def schedule_flush(self) -> None:
        """Send at the end of this pass of the event loop, in which other streams may add deltas."""
        self.flush_scheduled = True
        self._loop.call_soon(self.flush)

    def _handle(self, message: Any) -> None:
        if not self._accepted:
            self._greet(message)
        elif isinstance(message, Generate):
            self._start_stream(message)
        elif isinstance(message, Abort):
            task_or_none = self._tasks.get(message.stream)
            if task_or_none is not None:
                task_or_none.cancel()
        elif isinstance(message, Retain):
            if isinstance(self._server.engine, RetainingEngine):
                self._server.engine.retain(message.id, message.seconds)
        elif isinstance(message, HealthCheck):
            self._start_health_check(message.number)

    def _start_stream(self, message: Generate) -> None:
        number = message.stream
        if number in self._tasks:
            self._transport.abort()  # not a client of this protocol
            return
        task = self._tasks[number] = self._loop.create_task(self._generate(message))
        # Not at the end of the task: one that is aborted at once never begins.
        task.add_done_callback(partial(self._remove_stream, number))

    def _remove_stream(self, number: int, task: "asyncio.Task[None]") -> None:
        del self._tasks[number]

    def _greet(self, message: Any) -> None:
        self._timer.cancel()
        reason = (
            check_hello(message, self._server.key)
            if isinstance(message, Hello)
            else "the first message must be a hello"
        )
        if reason:
            self._transport.write(encode_frame(Rejection(PROTOCOL_VERSION, reason)))
            self._transport.close()
            return
        self._accepted = True
        self._reader.max_bytes = MAX_FRAME_BYTES
        self._transport.write(encode_frame(Welcome(PROTOCOL_VERSION, self._server.description)))
        self._report()

    def _report(self) -> None:
        """Send the engine's measurements now and every few seconds."""
        self._start_health_check(0)
        self._timer = self._loop.call_later(REPORT_INTERVAL_SECONDS, self._report)

    def _start_health_check(self, number: int) -> None:
        check = self._loop.create_task(self._check_health(number))
        self._health_checks.add(check)
        check.add_done_callback(self._health_checks.discard)

    async def _generate(self, message: Generate) -> None:
        number = message.stream
        sink = StepSink(self, number)
        try:
            await self._server.engine.generate(to_request(message), sink)
            if not sink.finished:
                raise InvalidEngineResponse("the engine sent no finish reason")
        except asyncio.CancelledError:
            raise
        except Exception as error:
            await self._fail(number, error)

    async def _fail(self, number: int, error: Exception) -> None:
        if isinstance(error, EngineUnavailable) and not (await self._server.engine.health()).ready:
            self._server.on_engine_dead()
        self.failures.append(to_failure(number, error))
        if not self.flush_scheduled:
            self.schedule_flush()

    async def _check_health(self, number: int) -> None:
        state = await self._server.engine.health()
        report = HealthReport(number, state.ready, state.detail, describe_facts(state.facts))
        if not self._transport.is_closing():
            self._transport.write(encode_frame(report))


class StepSink:
    """Adds the deltas of one stream to the next message."""

    __slots__ = ("_connection", "_number", "finished")

    def __init__(self, connection: StepServerConnection, number: int) -> None:
        self._connection = connection
        self._number = number
        self.finished = False

    def push(self, delta: TokenDelta) -> bool:
        """Add a delta. Runs for every token."""
        connection = self._connection
        connection.streams.append(self._number)
        connection.deltas.append(delta)
        if not connection.flush_scheduled:
            connection.schedule_flush()
        if delta.finish is not None:
            self.finished = True
        return not connection.paused

    async def drain(self) -> bool:
        """Wait until the client has caught up."""
        if self._connection.paused:
            await self._connection.wait_resumed()
        return True


def _configure_socket(connected: Any) -> None:
    """Send small messages at once, and detect clients that are gone. Unix sockets need neither."""
    if connected.family == getattr(socket, "AF_UNIX", None):
        return
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        limit = round(UNACKNOWLEDGED_TIMEOUT_SECONDS * 1000)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)
