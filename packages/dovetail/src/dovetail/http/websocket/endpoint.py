"""All open sockets: who gets one, and what becomes of them when the server stops."""

from dovetail.http.drain import Draining, stopping
from dovetail.http.errors import HttpError
from dovetail.http.exchange import Exchange
from dovetail.http.websocket.answer import Source
from dovetail.http.websocket.session import Connection, Respond
from dovetail.net.asgi import Message, Receive, Scope, Send
from dovetail.responses.connection_cache import ConnectionCache, ConnectionCacheBudget
from dovetail.telemetry.metrics import Metrics
from dovetail_model import Forbidden
from dovetail_protocols import RESPONSES

SOCKET_PATH = "/v1/responses"
MOST_SOCKETS = 4096
MOST_HELD = 256 << 20  # bytes of responses that all sockets hold for themselves
UPGRADED = 101
_ANSWERS = "websocket.http.response"  # ASGI's extension


class TooManySockets(HttpError):
    """Not 429: Codex takes that for the end of its session."""

    kind = "engine_unavailable"
    status = 503


class Sockets:
    """Opens sockets by `accept`, which is a handler like any other, and serves them by `serve`."""

    __slots__ = ("_draining", "_metrics", "_most_bytes", "_open", "_respond", "_room")

    def __init__(
        self, respond: Respond, draining: Draining, metrics: Metrics, most_bytes: int
    ) -> None:
        self._respond = respond
        self._draining = draining
        self._metrics = metrics
        self._most_bytes = most_bytes
        self._room = ConnectionCacheBudget(max(MOST_HELD, most_bytes))
        self._open: set[Connection] = set()
        draining.on_begin(self._retire)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request for a socket, refused as any request is, or the whole life of the socket."""
        exchange = _handshake(scope, receive, send)
        await self._respond(exchange)
        if exchange.status != UPGRADED:
            return
        local = ConnectionCache(budget=self._room)
        source = Source(scope, send, local)
        connection = Connection(source, receive, self._respond, self._most_bytes)
        self._open.add(connection)
        self._metrics.add_websockets(+1)
        if self._draining.begun:
            connection.retire()
        try:
            await connection.run()
        finally:
            self._open.discard(connection)
            local.close()
            self._metrics.add_websockets(-1)

    async def accept(self, exchange: Exchange) -> None:
        if self._draining.begun:
            raise stopping(RESPONSES, "The server is about to stop, and opens no more sockets.")
        if "origin" in exchange.headers:
            # Browsers let any page connect to this machine and read what comes: only we can refuse.
            raise Forbidden("WebSockets are for programs: a web page may not open one.")
        if len(self._open) >= MOST_SOCKETS:
            raise TooManySockets("Too many WebSockets are open: use HTTP.", retry_after=5.0)
        exchange.status = UPGRADED
        lines = [(b"x-request-id", exchange.request_id.encode())]
        lines += [(name.encode(), value.encode()) for name, value in exchange.extra]
        await exchange.send({"type": "websocket.accept", "headers": lines})

    def forget(self, tenant: str, id: str) -> None:
        """A response was deleted: no socket holds it any more."""
        for connection in self._open:
            connection.forget(tenant, id)

    def _retire(self) -> None:
        for connection in list(self._open):
            connection.retire()


def _handshake(scope: Scope, receive: Receive, send: Send) -> Exchange:
    """The request for a socket. An answer to it is HTTP's, under names that ASGI has for it.

    A server that does not know those names can only refuse, without a reason.
    """
    answers = _ANSWERS in (scope.get("extensions") or {})

    async def tell(message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.accept":
            await receive()  # what announces the request
            await send(message)
        elif answers:
            await send({**message, "type": f"websocket.{kind}"})
        elif kind == "http.response.start":
            await send({"type": "websocket.close"})

    exchange = Exchange({**scope, "method": "GET"}, receive, tell)
    exchange.transport = "websocket"
    return exchange
