"""All open sockets: who gets one, and what becomes of them when the server stops."""

from dovetail.http.drain import DrainController, ServerDraining
from dovetail.http.errors import HttpError
from dovetail.http.exchange import ApiExchange
from dovetail.http.options import DEFAULT_WEBSOCKET_OPTIONS, WebSocketOptions
from dovetail.http.websocket.session import ExchangeHandler, WebSocketContext, WebSocketSession
from dovetail.net.exchange import Message, Receive, Scope, Send
from dovetail.responses.connection_cache import ConnectionCache, ConnectionCacheBudget
from dovetail.telemetry.metrics import Metrics
from dovetail_model import Forbidden
from dovetail_protocols import RESPONSES

WEBSOCKET_PATH = "/v1/responses"
SWITCHING_PROTOCOLS = 101
_DENIAL_RESPONSE_EXTENSION = "websocket.http.response"  # ASGI's extension


class TooManyWebSockets(HttpError):
    """Not 429: Codex takes that for the end of its session."""

    kind = "engine_unavailable"
    status = 503


class WebSocketEndpoint:
    """Opens sockets by `accept`, which is a handler like any other, and serves them by `serve`."""

    __slots__ = (
        "_draining",
        "_local_budget",
        "_max_message_bytes",
        "_metrics",
        "_options",
        "_respond",
        "_sessions",
    )

    def __init__(
        self,
        respond: ExchangeHandler,
        draining: DrainController,
        metrics: Metrics,
        max_message_bytes: int,
        options: WebSocketOptions = DEFAULT_WEBSOCKET_OPTIONS,
    ) -> None:
        self._options = options
        self._respond = respond
        self._draining = draining
        self._metrics = metrics
        self._max_message_bytes = max_message_bytes
        self._local_budget = ConnectionCacheBudget(max(options.max_cached_bytes, max_message_bytes))
        self._sessions: set[WebSocketSession] = set()
        draining.on_start(self._drain_sessions)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request for a socket, refused as any request is, or the whole life of the socket."""
        exchange = _handshake_exchange(scope, receive, send)
        await self._respond(exchange)
        if exchange.status != SWITCHING_PROTOCOLS:
            return
        local = ConnectionCache(budget=self._local_budget)
        source = WebSocketContext(scope, send, local)
        connection = WebSocketSession(
            source, receive, self._respond, self._max_message_bytes, self._options
        )
        self._sessions.add(connection)
        self._metrics.add_websockets(+1)
        if self._draining.started:
            connection.drain()
        try:
            await connection.run()
        finally:
            self._sessions.discard(connection)
            local.close()
            self._metrics.add_websockets(-1)

    async def accept(self, exchange: ApiExchange) -> None:
        if self._draining.started:
            raise ServerDraining(
                "The server is about to stop, and opens no more sockets.", RESPONSES
            )
        if "origin" in exchange.headers:
            # Browsers let any page connect to this machine and read what comes: only we can refuse.
            raise Forbidden("WebSockets are for programs: a web page may not open one.")
        if len(self._sessions) >= self._options.max_connections:
            raise TooManyWebSockets("Too many WebSockets are open: use HTTP.", retry_after=5.0)
        exchange.status = SWITCHING_PROTOCOLS
        lines = [(b"x-request-id", exchange.request_id.encode())]
        lines += [(name.encode(), value.encode()) for name, value in exchange.extra_headers]
        await exchange.send({"type": "websocket.accept", "headers": lines})

    def forget_response(self, tenant: str, id: str) -> None:
        """A response was deleted: no socket holds it any more."""
        for connection in self._sessions:
            connection.forget_response(tenant, id)

    def _drain_sessions(self) -> None:
        for connection in list(self._sessions):
            connection.drain()


def _handshake_exchange(scope: Scope, receive: Receive, send: Send) -> ApiExchange:
    """The request for a socket. An answer to it is HTTP's, under names that ASGI has for it.

    A server that does not know those names can only refuse, without a reason.
    """
    answers = _DENIAL_RESPONSE_EXTENSION in (scope.get("extensions") or {})

    async def tell(message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.accept":
            await receive()  # what announces the request
            await send(message)
        elif answers:
            await send({**message, "type": f"websocket.{kind}"})
        elif kind == "http.response.start":
            await send({"type": "websocket.close"})

    exchange = ApiExchange({**scope, "method": "GET"}, receive, tell)
    exchange.transport = "websocket"
    return exchange
