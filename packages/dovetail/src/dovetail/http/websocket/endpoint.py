"""Accept WebSockets, serve them, and close them when the server drains."""

from dovetail.access.browser import BrowserPolicy, forbidden_origin
from dovetail.http.drain import DrainController, ServerDraining
from dovetail.http.errors import HttpError
from dovetail.http.exchange import ApiExchange
from dovetail.http.options import DEFAULT_WEBSOCKET_OPTIONS, WebSocketOptions
from dovetail.http.websocket.session import ExchangeHandler, WebSocketContext, WebSocketSession
from dovetail.net.exchange import Message, Receive, Scope, Send
from dovetail.responses.connection_cache import ConnectionCache, ConnectionCacheBudget
from dovetail.telemetry.metrics import Metrics
from dovetail_protocols import RESPONSES

WEBSOCKET_PATH = "/v1/responses"
SWITCHING_PROTOCOLS = 101
_DENIAL_RESPONSE_EXTENSION = "websocket.http.response"  # ASGI's extension


class TooManyWebSockets(HttpError):
    """Too many WebSockets are open. The status is not 429, on which Codex ends its session."""

    kind = "engine_unavailable"
    status = 503


class WebSocketEndpoint:
    """Serve WebSockets with `serve`; `accept` is the route handler of the handshake."""

    __slots__ = (
        "_browser_policy",
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
        browser_policy: BrowserPolicy,
        options: WebSocketOptions = DEFAULT_WEBSOCKET_OPTIONS,
    ) -> None:
        self._browser_policy = browser_policy
        self._options = options
        self._respond = respond
        self._draining = draining
        self._metrics = metrics
        self._max_message_bytes = max_message_bytes
        self._local_budget = ConnectionCacheBudget(max(options.max_cached_bytes, max_message_bytes))
        self._sessions: set[WebSocketSession] = set()
        draining.on_start(self._drain_sessions)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the handshake of a WebSocket and then all of its messages."""
        exchange = _handshake_exchange(scope, receive, send)
        await self._respond(exchange)
        if exchange.status != SWITCHING_PROTOCOLS:
            return
        local = ConnectionCache(budget=self._local_budget)
        context = WebSocketContext(scope, send, local)
        session = WebSocketSession(
            context, receive, self._respond, self._max_message_bytes, self._options
        )
        self._sessions.add(session)
        self._metrics.add_websockets(+1)
        if self._draining.started:
            session.drain()
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
            local.close()
            self._metrics.add_websockets(-1)

    async def accept(self, exchange: ApiExchange) -> None:
        if self._draining.started:
            raise ServerDraining("The server is stopping and accepts no new WebSockets.", RESPONSES)
        origin = exchange.headers.get("origin")
        if origin is not None and not self._browser_policy.is_allowed_origin(origin):
            # Browsers allow any web page to open a WebSocket to any server and to read its
            # messages, so the server has to reject them, also if it has keys.
            raise forbidden_origin(origin)
        if len(self._sessions) >= self._options.max_connections:
            raise TooManyWebSockets("Too many WebSockets are open; use HTTP.", retry_after=5.0)
        exchange.status = SWITCHING_PROTOCOLS
        lines = [(b"x-request-id", exchange.request_id.encode())]
        lines += [(name.encode(), value.encode()) for name, value in exchange.extra_headers]
        await exchange.send({"type": "websocket.accept", "headers": lines})

    def forget_response(self, tenant: str, id: str) -> None:
        """Drop a deleted response from all sessions."""
        for session in self._sessions:
            session.forget_response(tenant, id)

    def _drain_sessions(self) -> None:
        for session in list(self._sessions):
            session.drain()


def _handshake_exchange(scope: Scope, receive: Receive, send: Send) -> ApiExchange:
    """Return the handshake of a WebSocket as an exchange.

    Responses use ASGI's extension for denial responses. A server without this extension can only
    reject the handshake without a reason.
    """
    can_respond = _DENIAL_RESPONSE_EXTENSION in (scope.get("extensions") or {})

    async def send_handshake(message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.accept":
            await receive()  # the connect message
            await send(message)
        elif can_respond:
            await send({**message, "type": f"websocket.{kind}"})
        elif kind == "http.response.start":
            await send({"type": "websocket.close"})

    exchange = ApiExchange({**scope, "method": "GET"}, receive, send_handshake)
    exchange.transport = "websocket"
    return exchange
