"""One open WebSocket: receive requests and run them in order per stream id."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import msgspec

from dovetail.http.diagnostics import DIAGNOSTICS_HEADER, encode_message
from dovetail.http.exchange import ApiExchange
from dovetail.http.memory import request_memory
from dovetail.http.options import WebSocketOptions
from dovetail.http.websocket.messages import (
    MIN_LARGE_MESSAGE_BYTES,
    RawHeaders,
    WebSocketRequest,
    add_stream_id,
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
from dovetail.pipeline.concurrency import run_in_body_thread
from dovetail.responses.connection_cache import ConnectionCache
from dovetail_model import RateLimited

#: Headers of the handshake that requests do not inherit.
_HANDSHAKE_HEADERS = frozenset(
    {
        *("connection", "upgrade", "content-encoding", "content-length", "content-type"),
        *("x-request-id", "x-codex-turn-metadata", "traceparent", "tracestate"),
    }
)
_DIAGNOSTICS_HEADER = DIAGNOSTICS_HEADER.encode()
_METADATA_HEADERS = ("traceparent", "tracestate")
#: Raised by servers when a message is sent to a closed connection.
CLOSED_ERRORS = (OSError, RuntimeError)


class WebSocketResponseAdapter:
    """Send the ASGI messages of a response as WebSocket messages.

    A response that is not a stream is an error, because requests over WebSockets always stream.
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

    def __init__(self, request: WebSocketRequest, send: Send, disconnected: asyncio.Event) -> None:
        self._pending_request: WebSocketRequest | None = request
        self._stream_suffix = encode_stream_suffix(request.stream_id)
        self._send = send
        self._disconnected = disconnected
        self._status = 0
        self._headers: RawHeaders = ()
        self._is_stream = False
        self._body_chunks: list[bytes] = []

    async def receive(self) -> Message:
        """Return the body on the first call; then wait for the disconnect."""
        request, self._pending_request = self._pending_request, None
        if request is None:
            await self._disconnected.wait()
            return {"type": "http.disconnect"}
        if request.error is not None:
            raise request.error
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], message["headers"]
            self._is_stream = is_event_stream(self._status, self._headers)
            if self._is_stream:
                await self._send_messages(self._diagnostics())
            return
        body: bytes = message.get("body", b"")
        if self._is_stream:
            await self._send_messages(split_messages(body, self._stream_suffix))
            return
        self._body_chunks.append(body)
        if not message.get("more_body", False):
            content = b"".join(self._body_chunks)
            await self._send_messages(
                [encode_error_message(self._status, self._headers, content, self._stream_suffix)]
            )

    def _diagnostics(self) -> list[bytes]:
        """Return a message with the notes that are in the header of an HTTP response."""
        return [
            add_stream_id(encode_message(value.decode("latin-1")), self._stream_suffix)
            for name, value in self._headers
            if name == _DIAGNOSTICS_HEADER
        ]

    async def _send_messages(self, messages: Iterable[bytes]) -> None:
        """Send messages. As with HTTP, sending to a disconnected client is not an error."""
        for message in messages:
            if self._disconnected.is_set():
                return
            with suppress(*CLOSED_ERRORS):
                await self._send({"type": "websocket.send", "text": message.decode()})


class WebSocketContext:
    """The connection of a session, and the responses that only this connection can use."""

    __slots__ = ("disconnected", "local_responses", "scope", "send")

    def __init__(self, scope: Scope, send: Send, local: ConnectionCache) -> None:
        self.scope = scope
        self.send = send
        self.local_responses = local
        self.disconnected = asyncio.Event()


def create_exchange(request: WebSocketRequest, context: WebSocketContext) -> ApiExchange:
    """Create the exchange of a request, as if it were a POST to the path of the WebSocket."""
    scope = context.scope
    response = WebSocketResponseAdapter(request, context.send, context.disconnected)
    transport: WebSocketTransport | None
    transport = (scope.get("extensions") or {}).get(WEBSOCKET_TRANSPORT_EXTENSION)
    extensions: dict[str, DirectWebSocketWriter] = {}
    if transport is not None:
        suffix = encode_stream_suffix(request.stream_id)
        extensions[DIRECT_WRITER_EXTENSION] = transport.open_writer(suffix)
    request_scope = {
        **scope,
        "method": "POST",
        "headers": _request_headers(scope["headers"], request),
        "extensions": extensions,
    }
    exchange = ApiExchange(request_scope, response.receive, response.send)
    exchange.transport = "websocket"
    exchange.local_responses = context.local_responses
    exchange.warm_only = request.warm_only
    return exchange


def _request_headers(headers: RawHeaders, request: WebSocketRequest) -> list[tuple[bytes, bytes]]:
    """Return the headers of the handshake that apply to the request, and its own headers."""
    inherited = [
        (name, value)
        for name, value in headers
        if (lower_name := name.decode("latin-1").lower()) not in _HANDSHAKE_HEADERS
        and lower_name not in request.headers
    ]
    own = [(name, request.headers[name]) for name in _METADATA_HEADERS if name in request.headers]
    return [
        *inherited,
        *((name.encode(), value.encode("latin-1", "replace")) for name, value in own),
    ]


CLOSE_GOING_AWAY = 1001
CLOSE_INTERNAL_ERROR = 1011
CLOSE_SERVICE_RESTART = 1012

ExchangeHandler = Callable[[ApiExchange], Awaitable[None]]


class WebSocketSession:
    """An accepted WebSocket. Requests with the same stream id run one at a time, in order."""

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
        self._queued_bytes = 0
        self._draining = False
        self._closing = False

    async def run(self) -> None:
        """Serve requests until the client disconnects or is idle for too long."""
        try:
            while (data := await self._receive_message()) is not None:
                await self._accept_request(await self._decode(data))
        finally:
            self._context.disconnected.set()  # running requests are cancelled
            if self._tasks:
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def drain(self) -> None:
        """Close the connection after its running and queued requests: the server is stopping."""
        self._draining = True
        if not self._queues:
            self._close_soon(CLOSE_SERVICE_RESTART, "the server is restarting")

    def forget_response(self, tenant: str, id: str) -> None:
        """Drop a deleted response from the cache of the connection."""
        self._context.local_responses.delete(tenant, id)

    async def _receive_message(self) -> str | bytes | None:
        """Return the next message; None after a disconnect."""
        while True:
            try:
                async with asyncio.timeout(self._options.idle_timeout_seconds):
                    message = await self._receive()
            except TimeoutError:
                if not self._queues:
                    self._close_soon(CLOSE_GOING_AWAY, "idle timeout")
                continue
            if message["type"] == "websocket.disconnect":
                return None
            text: str | None = message.get("text")
            data: bytes = message.get("bytes") or b""
            return data if text is None else text

    async def _decode(self, data: str | bytes) -> WebSocketRequest:
        """Decode a message, in a thread if that takes long."""
        size = len(data)
        if size < MIN_LARGE_MESSAGE_BYTES:
            return decode_message(data)
        self._add_queued_bytes(size)
        try:
            return await run_in_body_thread(size, lambda: decode_message(data))
        finally:
            self._add_queued_bytes(-size)

    async def _accept_request(self, request: WebSocketRequest) -> None:
        if self._closing:
            return
        queue = self._queues.get(request.stream_id)
        if not self._has_room(request, queue):
            reason = "concurrent streams" if queue is None else "queued messages"
            busy = RateLimited(f"Too many {reason} on this connection.", retry_after=1.0)
            await self._run_request(msgspec.structs.replace(request, error=busy))
        elif queue is not None:
            self._add_queued_bytes(request.size)
            queue.append(request)
        else:
            self._queues[request.stream_id] = deque()
            task = asyncio.create_task(self._run_queue(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _has_room(self, request: WebSocketRequest, queue: deque[WebSocketRequest] | None) -> bool:
        if queue is None:
            return len(self._queues) < self._options.max_streams
        waiting = sum(len(one) for one in self._queues.values())
        if (
            waiting >= self._options.max_queued_messages
            or self._queued_bytes + request.size > self._max_message_bytes
        ):
            return False
        return not request_memory.is_exceeded_by(request.size, self._max_message_bytes)

    def _add_queued_bytes(self, size: int) -> None:
        """Change the number of queued bytes by `size`."""
        self._queued_bytes += size
        request_memory.total_bytes += size

    async def _run_queue(self, request: WebSocketRequest) -> None:
        """Run the requests of a stream id until its queue is empty."""
        queue = self._queues[request.stream_id]
        try:
            await self._run_request(request)
            while queue and not self._context.disconnected.is_set():
                request = queue.popleft()
                self._add_queued_bytes(-request.size)
                await self._run_request(request)
        finally:
            self._queues.pop(request.stream_id, None)
            self._add_queued_bytes(-sum(waiting.size for waiting in queue))
        if self._draining and not self._queues:
            await self._close(CLOSE_SERVICE_RESTART, "the server is restarting")

    async def _run_request(self, request: WebSocketRequest) -> None:
        try:
            await self._respond(create_exchange(request, self._context))
        except Exception:
            # Part of the response was sent. As with HTTP, it must not look complete.
            await self._close(CLOSE_INTERNAL_ERROR, "the response failed")

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
