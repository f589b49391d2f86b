"""One open socket: messages come in, are answered lane by lane, and end with the connection."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import msgspec

from dovetail.http.exchange import ApiExchange
from dovetail.http.memory import request_memory
from dovetail.http.options import WebSocketOptions
from dovetail.http.websocket.messages import (
    RawHeaders,
    WebSocketRequest,
    decode_message,
    encode_error_message,
    encode_stream_suffix,
    is_event_stream,
    split_messages,
)
from dovetail.http.websocket.protocol import (
    WEBSOCKET_TRANSPORT_EXTENSION,
    DirectWebSocketWriter,
    WebSocketTransport,
)
from dovetail.net.exchange import Message, Receive, Scope, Send
from dovetail.net.response_writer import DIRECT_WRITER_EXTENSION
from dovetail.responses.connection_cache import ConnectionCache
from dovetail_model import RateLimited

#: Headers that belong to the one request that opened the socket.
_HANDSHAKE_HEADERS = frozenset(
    {
        *("connection", "upgrade", "content-encoding", "content-length", "content-type"),
        *("x-request-id", "x-codex-turn-metadata", "traceparent", "tracestate"),
    }
)
_METADATA_HEADERS = ("traceparent", "tracestate")
#: What servers raise at a message for a connection that is closed, by the client or by themselves.
CLOSED_ERRORS = (OSError, RuntimeError)


class WebSocketResponseAdapter:
    """The answer to one message, told as ASGI has it and sent as messages.

    An answer that is no stream is an error, since streams are all that is asked for here.
    """

    __slots__ = (
        "_body_chunks",
        "_disconnected",
        "_headers",
        "_is_stream",
        "_pending_request",
        "_send",
        "_status",
        "_stream_suffix",
    )

    def __init__(self, asked: WebSocketRequest, send: Send, gone: asyncio.Event) -> None:
        self._pending_request: WebSocketRequest | None = asked
        self._stream_suffix = encode_stream_suffix(asked.stream_id)
        self._send = send
        self._disconnected = gone
        self._status = 0
        self._headers: RawHeaders = ()
        self._is_stream = False
        self._body_chunks: list[bytes] = []

    async def receive(self) -> Message:
        """The body, once; then nothing until the client hangs up."""
        asked, self._pending_request = self._pending_request, None
        if asked is None:
            await self._disconnected.wait()
            return {"type": "http.disconnect"}
        if asked.error is not None:
            raise asked.error
        return {"type": "http.request", "body": asked.body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], message["headers"]
            self._is_stream = is_event_stream(self._status, self._headers)
            return
        body: bytes = message.get("body", b"")
        if self._is_stream:
            await self._send_messages(split_messages(body, self._stream_suffix))
            return
        self._body_chunks.append(body)
        if not message.get("more_body", False):
            whole = b"".join(self._body_chunks)
            await self._send_messages(
                [encode_error_message(self._status, self._headers, whole, self._stream_suffix)]
            )

    async def _send_messages(self, told: Iterable[bytes]) -> None:
        """As with HTTP, nobody minds what is sent to a client that has hung up."""
        for one in told:
            if self._disconnected.is_set():
                return
            with suppress(*CLOSED_ERRORS):
                await self._send({"type": "websocket.send", "text": one.decode()})


class WebSocketContext:
    """Where messages come from: a connection, and the responses that it holds for itself."""

    __slots__ = ("disconnected", "local_responses", "scope", "send")

    def __init__(self, scope: Scope, send: Send, local: ConnectionCache) -> None:
        self.scope = scope
        self.send = send
        self.local_responses = local
        self.disconnected = asyncio.Event()


def create_exchange(request: WebSocketRequest, context: WebSocketContext) -> ApiExchange:
    """The request that a message is, as if it had been posted to the socket's own address."""
    scope = context.scope
    answer = WebSocketResponseAdapter(request, context.send, context.disconnected)
    transport: WebSocketTransport | None
    transport = (scope.get("extensions") or {}).get(WEBSOCKET_TRANSPORT_EXTENSION)
    extensions: dict[str, DirectWebSocketWriter] = {}
    if transport is not None:
        suffix = encode_stream_suffix(request.stream_id)
        extensions[DIRECT_WRITER_EXTENSION] = transport.open_writer(suffix)
    posted = {
        **scope,
        "method": "POST",
        "headers": _request_headers(scope["headers"], request),
        "extensions": extensions,
    }
    exchange = ApiExchange(posted, answer.receive, answer.send)
    exchange.transport = "websocket"
    exchange.local_responses = context.local_responses
    exchange.warm_only = request.warm_only
    return exchange


def _request_headers(lines: RawHeaders, asked: WebSocketRequest) -> list[tuple[bytes, bytes]]:
    """Those of the connection, without what is another request's or said anew by this one."""
    kept = [
        (name, value)
        for name, value in lines
        if (own := name.decode("latin-1").lower()) not in _HANDSHAKE_HEADERS
        and own not in asked.headers
    ]
    told = [(name, asked.headers[name]) for name in _METADATA_HEADERS if name in asked.headers]
    return [*kept, *((name.encode(), value.encode("latin-1", "replace")) for name, value in told)]


CLOSE_GOING_AWAY = 1001
CLOSE_INTERNAL_ERROR = 1011
CLOSE_SERVICE_RESTART = 1012

ExchangeHandler = Callable[[ApiExchange], Awaitable[None]]


class WebSocketSession:
    """A socket that was accepted. Each lane answers one message at a time, in their order."""

    __slots__ = (
        "_closing",
        "_context",
        "_draining",
        "_max_message_bytes",
        "_options",
        "_queued_bytes",
        "_queues",
        "_receive",
        "_respond",
        "_tasks",
    )  # fmt: skip

    def __init__(
        self,
        context: WebSocketContext,
        receive: Receive,
        respond: ExchangeHandler,
        max_message_bytes: int,
        options: WebSocketOptions,
    ) -> None:
        self._context = context
        self._options = options
        self._receive = receive
        self._respond = respond
        self._max_message_bytes = max_message_bytes
        self._queues: dict[str | None, deque[WebSocketRequest]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._queued_bytes = 0  # bytes
        self._draining = False
        self._closing = False

    async def run(self) -> None:
        """Until the client hangs up, or has nothing to say for too long."""
        try:
            while (data := await self._receive_message()) is not None:
                await self._accept_request(decode_message(data))
        finally:
            self._context.disconnected.set()  # what is still answered is answered to nobody
            if self._tasks:
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def drain(self) -> None:
        """The server is about to stop: no more than what is under way is answered."""
        self._draining = True
        if not self._queues:
            self._close_soon(CLOSE_SERVICE_RESTART, "the server restarts")

    def forget_response(self, tenant: str, id: str) -> None:
        """A response was deleted."""
        self._context.local_responses.delete(tenant, id)

    async def _receive_message(self) -> str | bytes | None:
        """The next message; None when there will be none."""
        while True:
            try:
                async with asyncio.timeout(self._options.idle_timeout_seconds):
                    message = await self._receive()
            except TimeoutError:
                if not self._queues:
                    self._close_soon(CLOSE_GOING_AWAY, "nothing was asked for a long time")
                continue
            if message["type"] == "websocket.disconnect":
                return None
            text: str | None = message.get("text")
            data: bytes = message.get("bytes") or b""
            return data if text is None else text

    async def _accept_request(self, asked: WebSocketRequest) -> None:
        if self._closing:
            return
        line = self._queues.get(asked.stream_id)
        if not self._has_room(asked, line):
            what = "lanes are at work" if line is None else "messages wait"
            busy = RateLimited(f"Too many {what} on this connection.", retry_after=1.0)
            await self._run_request(msgspec.structs.replace(asked, error=busy))
        elif line is not None:
            self._add_queued_bytes(asked.size)
            line.append(asked)
        else:
            self._queues[asked.stream_id] = deque()
            task = asyncio.create_task(self._run_queue(asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _has_room(self, asked: WebSocketRequest, line: deque[WebSocketRequest] | None) -> bool:
        if line is None:
            return len(self._queues) < self._options.max_streams
        waiting = sum(len(one) for one in self._queues.values())
        if (
            waiting >= self._options.max_queued_messages
            or self._queued_bytes + asked.size > self._max_message_bytes
        ):
            return False
        return not request_memory.is_exceeded_by(asked.size, self._max_message_bytes)

    def _add_queued_bytes(self, size: int) -> None:
        """So many bytes more wait, or fewer."""
        self._queued_bytes += size
        request_memory.total_bytes += size

    async def _run_queue(self, asked: WebSocketRequest) -> None:
        """A lane, from its first message until none waits."""
        line = self._queues[asked.stream_id]
        try:
            await self._run_request(asked)
            while line and not self._context.disconnected.is_set():
                asked = line.popleft()
                self._add_queued_bytes(-asked.size)
                await self._run_request(asked)
        finally:
            self._queues.pop(asked.stream_id, None)
            self._add_queued_bytes(-sum(one.size for one in line))
        if self._draining and not self._queues:
            await self._close(CLOSE_SERVICE_RESTART, "the server restarts")

    async def _run_request(self, asked: WebSocketRequest) -> None:
        try:
            await self._respond(create_exchange(asked, self._context))
        except Exception:
            # Half an answer was sent: as with HTTP, it must not look whole. The log says why.
            await self._close(CLOSE_INTERNAL_ERROR, "the answer broke off")

    def _close_soon(self, code: int, reason: str) -> None:
        task = asyncio.create_task(self._close(code, reason))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self, code: int, reason: str) -> None:
        if self._closing or self._context.disconnected.is_set():
            return
        self._closing = True
        with suppress(*CLOSED_ERRORS):
            await self._context.send({"type": "websocket.close", "code": code, "reason": reason})
