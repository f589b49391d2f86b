"""One message that asks, as a request: what it brings, and where its answer goes."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from dovetail.http.exchange import ApiExchange
from dovetail.http.websocket.messages import WebSocketRequest
from dovetail.http.websocket.protocol import WEBSOCKET_TRANSPORT_EXTENSION
from dovetail.http.websocket.wire import (
    RawHeaders,
    encode_error_message,
    encode_stream_suffix,
    is_event_stream,
    split_messages,
)
from dovetail.net.exchange import DIRECT_WRITER_EXTENSION, Message, Scope, Send
from dovetail.responses.connection_cache import ConnectionCache

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
        "_disconnected",
        "_headers",
        "_stream_suffix",
        "_send",
        "_status",
        "_is_stream",
        "_pending_request",
        "_body_chunks",
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
    carrier = (scope.get("extensions") or {}).get(WEBSOCKET_TRANSPORT_EXTENSION)
    posted = {
        **scope,
        "method": "POST",
        "headers": _request_headers(scope["headers"], request),
        "extensions": {
            DIRECT_WRITER_EXTENSION: carrier.outlet(encode_stream_suffix(request.stream_id))
        }
        if carrier
        else {},
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
