"""One message that asks, as a request: what it brings, and where its answer goes."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from dovetail.http.exchange import Exchange
from dovetail.http.websocket.messages import Asked
from dovetail.http.websocket.protocol import CARRIER
from dovetail.http.websocket.wire import Lines, error_message, lane_of, messages, streams
from dovetail.net.asgi import Message, Scope, Send
from dovetail.net.direct import DIRECT_WRITER_EXTENSION
from dovetail.responses.connection_cache import ConnectionCache

#: Headers that belong to the one request that opened the socket.
_OWN = frozenset(
    {
        *("connection", "upgrade", "content-encoding", "content-length", "content-type"),
        *("x-request-id", "x-codex-turn-metadata", "traceparent", "tracestate"),
    }
)
_CARRIED = ("traceparent", "tracestate")
#: What servers raise at a message for a connection that is closed, by the client or by themselves.
CLOSED = (OSError, RuntimeError)


class Answer:
    """The answer to one message, told as ASGI has it and sent as messages.

    An answer that is no stream is an error, since streams are all that is asked for here.
    """

    __slots__ = ("_gone", "_headers", "_lane", "_send", "_status", "_streams", "_unread", "_whole")

    def __init__(self, asked: Asked, send: Send, gone: asyncio.Event) -> None:
        self._unread: Asked | None = asked
        self._lane = lane_of(asked.lane)
        self._send = send
        self._gone = gone
        self._status = 0
        self._headers: Lines = ()
        self._streams = False
        self._whole: list[bytes] = []

    async def receive(self) -> Message:
        """The body, once; then nothing until the client hangs up."""
        asked, self._unread = self._unread, None
        if asked is None:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        if asked.fault is not None:
            raise asked.fault
        return {"type": "http.request", "body": asked.body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], message["headers"]
            self._streams = streams(self._status, self._headers)
            return
        body: bytes = message.get("body", b"")
        if self._streams:
            await self._tell(messages(body, self._lane))
            return
        self._whole.append(body)
        if not message.get("more_body", False):
            whole = b"".join(self._whole)
            await self._tell([error_message(self._status, self._headers, whole, self._lane)])

    async def _tell(self, told: Iterable[bytes]) -> None:
        """As with HTTP, nobody minds what is sent to a client that has hung up."""
        for one in told:
            if self._gone.is_set():
                return
            with suppress(*CLOSED):
                await self._send({"type": "websocket.send", "text": one.decode()})


class Source:
    """Where messages come from: a connection, and the responses that it holds for itself."""

    __slots__ = ("gone", "local", "scope", "send")

    def __init__(self, scope: Scope, send: Send, local: ConnectionCache) -> None:
        self.scope = scope
        self.send = send
        self.local = local
        self.gone = asyncio.Event()


def exchange_of(asked: Asked, source: Source) -> Exchange:
    """The request that a message is, as if it had been posted to the socket's own address."""
    scope = source.scope
    answer = Answer(asked, source.send, source.gone)
    carrier = (scope.get("extensions") or {}).get(CARRIER)
    posted = {
        **scope,
        "method": "POST",
        "headers": _headers(scope["headers"], asked),
        "extensions": {DIRECT_WRITER_EXTENSION: carrier.outlet(lane_of(asked.lane))} if carrier else {},
    }
    exchange = Exchange(posted, answer.receive, answer.send)
    exchange.transport = "websocket"
    exchange.local = source.local
    exchange.warms = asked.warms
    return exchange


def _headers(lines: Lines, asked: Asked) -> list[tuple[bytes, bytes]]:
    """Those of the connection, without what is another request's or said anew by this one."""
    kept = [
        (name, value)
        for name, value in lines
        if (own := name.decode("latin-1").lower()) not in _OWN and own not in asked.told
    ]
    told = [(name, asked.told[name]) for name in _CARRIED if name in asked.told]
    return [*kept, *((name.encode(), value.encode("latin-1", "replace")) for name, value in told)]
