"""The ASGI application: route requests to endpoints, track them, and send errors."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from dovetail.access.auth import ANONYMOUS, require_admin
from dovetail.access.budgets import BudgetGate
from dovetail.http.codex_catalog import CodexCatalog
from dovetail.http.collectors import ReplicaCollector, StoreCollector
from dovetail.http.drain import DrainController
from dovetail.http.errors import error_status, send_error, to_client_error
from dovetail.http.exchange import ApiExchange, PayloadCapture
from dovetail.http.generation import GenerationEndpoint
from dovetail.http.health import HealthEndpoints
from dovetail.http.memory import MemoryLimitReached, request_memory
from dovetail.http.models import ModelsEndpoints
from dovetail.http.options import HttpOptions
from dovetail.http.render import RenderEndpoints
from dovetail.http.replicas import ReplicaEndpoints
from dovetail.http.responses.background import BackgroundResponses
from dovetail.http.responses.conversation_endpoints import ConversationEndpoints
from dovetail.http.responses.endpoints import ResponsesEndpoints
from dovetail.http.responses.large_bodies import LargeBodySender
from dovetail.http.responses.run import ResponseKey
from dovetail.http.routes import Handler, Route, RouteTable, build_document, select_error_codec
from dovetail.http.scheduled_sessions import SessionEndpoints
from dovetail.http.session_collector import SessionCollector
from dovetail.http.tokens import TokensEndpoints
from dovetail.http.tracker import RequestTracker
from dovetail.http.ui import UiEndpoints
from dovetail.http.usage import UsageEndpoints
from dovetail.http.websocket.endpoint import WEBSOCKET_PATH, WebSocketEndpoint
from dovetail.net.exchange import ClientDisconnected, Receive, Scope, Send
from dovetail.net.trace_context import SpanFactory, trace_scope
from dovetail.pipeline.panics import convert_panics
from dovetail.pipeline.registry import ModelRegistry
from dovetail.telemetry.log_throttle import LogThrottle
from dovetail.telemetry.metrics import Metrics
from dovetail.telemetry.record import RequestRecorder
from dovetail.ui.data import UiData
from dovetail.usage.writer import UsageWriter
from dovetail_model import DovetailError
from dovetail_protocols import (
    COMPACT,
    COMPLETIONS,
    MESSAGES,
    MODELS_ETAG_HEADER,
    RESPONSES,
    ChatCodec,
    Codec,
)

_log = logging.getLogger(__name__)


class App:
    """ASGI application for a registry of models. The ASGI server must support `lifespan`."""

    def __init__(
        self,
        service: ModelRegistry,
        options: HttpOptions | None = None,
        metrics: Metrics | None = None,
        recorders: Sequence[RequestRecorder] = (),
        usage: UsageWriter | None = None,
    ) -> None:
        self.service = service
        self.options = options or HttpOptions()
        self.metrics = metrics or Metrics()
        #: The data of the web UI, if it is enabled.
        self.ui = (
            UiData(service, self.metrics, payloads=self.options.ui_payloads)
            if self.options.ui
            else None
        )
        self.recorders = recorders if self.ui is None else (*recorders, self.ui)
        self.usage = usage
        self._begin_span = next(
            (recorder.start_span for recorder in recorders if isinstance(recorder, SpanFactory)),
            None,
        )
        self.metrics.registry.register(ReplicaCollector(service))
        self.metrics.registry.register(SessionCollector(service))
        store_faults = [*service.store_faults, *([] if usage is None else [usage.store.faults])]
        self.metrics.registry.register(StoreCollector(store_faults))
        self.metrics.track_held_body_bytes(lambda: request_memory.total_bytes)
        self._log_throttle = LogThrottle()
        self.startup_error: str | None = None  # why the startup failed
        self._chat: Codec = ChatCodec(self.options.reasoning_field)
        self._codecs = (MESSAGES, RESPONSES, self._chat, COMPLETIONS)
        #: Renders the metrics, including those of other worker processes, if any.
        self.render_metrics: Callable[[str], Awaitable[tuple[bytes, str]]] = (
            self._render_own_metrics
        )
        self.draining = DrainController(self.options.drain_timeout)
        self.draining.on_start(lambda: self.metrics.set_draining(True))
        self.background = BackgroundResponses(
            service.response_store, self.metrics, self.draining, self.options.background_options
        )
        self._generation = GenerationEndpoint(
            service, self.options, self.draining, self.metrics, self.background
        )
        self._generation.budgets = BudgetGate(usage, self.metrics)
        self._catalog = CodexCatalog(service, self.options.codex_profiles)
        self._websockets = WebSocketEndpoint(
            self._respond,
            self.draining,
            self.metrics,
            self.options.max_body_bytes,
            self.options.browser_policy,
            self.options.websocket_options,
        )
        self.routes = RouteTable(self._build_routes(), self._websocket_routes())
        self._openapi_document = build_document(
            route for route in self.routes.all if not route.for_own_pages
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope.get("client")
        if scope["type"] != "lifespan":
            self.options.client_addresses.set_client(scope)
        match scope["type"]:
            case "http":
                exchange = ApiExchange(scope, receive, send)
                exchange.connected_from = connection[0] if connection else None
                exchange.extra_headers += self.options.browser_policy.cors_headers(exchange.headers)
                await self._respond(exchange)
            case "lifespan":
                await self._run_lifespan(receive, send)
            case "websocket":
                await self._websockets.serve(scope, receive, send)

    async def forget_response(self, key: ResponseKey) -> None:
        """Drop the data of a deleted response that this process still holds."""
        self._websockets.forget_response(*key)
        await self.background.forget(key)

    async def _respond(self, exchange: ApiExchange) -> None:
        """Handle a request in the trace that its headers name."""
        with trace_scope(exchange.headers, self._begin_span):
            await self._track(exchange)

    async def _track(self, exchange: ApiExchange) -> None:
        """Handle and track a request. Errors are sent in the format of the API."""
        route = self.routes.find(exchange.path, exchange.method)
        endpoint = "unknown" if route is None else route.endpoint
        tracker = RequestTracker(
            exchange,
            endpoint,
            self.metrics,
            log_prefix=self.options.log_prefix,
            recorders=self.recorders,
            accounting=self.usage,
        )
        if route is not None and not route.counted:
            await self._dispatch(exchange, tracker, route)
            if tracker.is_key_rejected:  # health probes are not logged, key guesses are
                tracker.start()
                self._finish(exchange, tracker)
            return
        tracker.start()
        capture = PayloadCapture(exchange) if self.options.capture_payloads else None
        try:
            await self._dispatch(exchange, tracker, route)
        finally:
            if not tracker.detached:
                self._finish(exchange, tracker, None if capture is None else capture.response_body)

    async def _dispatch(
        self, exchange: ApiExchange, tracker: RequestTracker, path_route: Route | None
    ) -> None:
        """Handle a request. `path_route` is a route of its path, possibly of another method."""
        codec = select_error_codec(exchange, path_route, self._codecs, self._chat)
        try:
            with convert_panics():
                has_started = lambda: exchange.status is not None  # noqa: E731
                async with self.draining.ensure_response(codec, has_started):
                    await self._handle(exchange, tracker, path_route)
        except ClientDisconnected:
            tracker.on_disconnect()
        except Exception as error:
            failure = to_client_error(error)
            tracker.on_error(failure, error_status(failure, codec))
            if isinstance(failure, MemoryLimitReached):
                self.metrics.count_rate_limited(failure.reason)
            if exchange.status is not None:
                raise  # the server aborts the connection: the response must not look complete
            await send_error(exchange, codec, failure)

    async def _handle(
        self, exchange: ApiExchange, tracker: RequestTracker, path_route: Route | None
    ) -> None:
        if await self._check_browser(exchange, path_route):
            return
        route = self.routes.match(exchange)
        if route.needs_key:
            exchange.caller = self.options.keys.authenticate(exchange.headers)
            exchange.tenant = exchange.caller.tenant
        await route.handler(exchange, tracker)

    async def _check_browser(self, exchange: ApiExchange, route: Route | None) -> bool:
        """Reject requests of foreign web pages. Returns whether the request was a preflight.

        Messages of a WebSocket were checked with its handshake.
        """
        if exchange.transport == "websocket" and not exchange.is_upgrade:
            return False
        policy, headers = self.options.browser_policy, exchange.headers
        if route is not None and route.for_own_pages:
            # Its host is checked even with keys: a page is meant for people, not for programs.
            policy.require_host(headers, has_keys=False)
            policy.require_same_origin(headers)
            return False
        has_keys = bool(self.options.keys)
        policy.require_host(headers, has_keys=has_keys)
        if policy.is_preflight(exchange.method, headers):
            lines = policy.preflight_headers(headers)
            await exchange.respond(204, b"", headers=lines)
            return True
        policy.require_origin(headers, has_keys=has_keys)
        return False

    def _finish(
        self, exchange: ApiExchange, tracker: RequestTracker, response_body: bytes | None = None
    ) -> None:
        """Finish the record of a request. Logs of rejected anonymous requests are throttled."""
        if (
            tracker.has_error
            and exchange.caller is ANONYMOUS
            and not self._log_throttle.allow(exchange.peer)
        ):
            tracker.suppress_log()
        tracker.finish(response_body)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        """Start the service before the first request and stop it after the last one."""
        await receive()
        try:
            await self.service.start()
        except Exception as error:
            # Our own errors need no traceback: the process that starts the server prints them.
            if not isinstance(error, DovetailError):
                fields = {"reason": str(error)}
                _log.error("startup_failed", exc_info=error, extra={"fields": fields})
            self.startup_error = str(error)
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        if self.usage is not None:
            self.usage.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.background.close()
        try:
            await self.service.stop()
        finally:
            if self.usage is not None:
                await self.usage.close()
            for recorder in self.recorders:
                await asyncio.to_thread(recorder.close)
            await send({"type": "lifespan.shutdown.complete"})

    async def _render_own_metrics(self, accept: str) -> tuple[bytes, str]:
        return self.metrics.render(accept)

    async def _metrics(self, exchange: ApiExchange) -> None:
        if self.options.metrics_need_key:
            require_admin(exchange.caller)
        body, content_type = await self.render_metrics(exchange.headers.get("accept", ""))
        await exchange.respond(200, body, content_type)

    async def _openapi(self, exchange: ApiExchange) -> None:
        await exchange.respond(200, self._openapi_document)

    def _generation_route(self, path: str, codec: Codec, summary: str) -> Route:
        async def handle(exchange: ApiExchange, tracker: RequestTracker) -> None:
            if codec.models_etag_header is not None:
                etag = self._catalog.current().etag
                exchange.extra_headers.append((codec.models_etag_header, etag))
            await self._generation.generate(exchange, tracker, codec)

        return Route("POST", path, handle, summary, codec=codec)

    def _build_routes(self) -> list[Route]:
        models, tokens = (
            ModelsEndpoints(self.service, self._catalog),
            TokensEndpoints(self.service, self.options),
        )
        render = RenderEndpoints(self.service, self.options)
        sender = LargeBodySender(self.options.max_body_bytes)
        post, get = "POST", "GET"
        table = [
            self._generation_route("/v1/responses", RESPONSES, "OpenAI Responses"),
            self._generation_route(
                "/v1/responses/compact", COMPACT, "Compact a conversation into a summary"
            ),
            *ResponsesEndpoints(
                self.service, self.options, self.background, self.forget_response, sender
            ).routes(),
            *ConversationEndpoints(
                self.service.conversations, self.service.response_store, self.options, sender
            ).routes(),
            self._generation_route("/v1/chat/completions", self._chat, "Chat Completions"),
            render.route("/v1/responses", RESPONSES),
            render.route("/v1/chat/completions", self._chat),
            self._generation_route("/v1/completions", COMPLETIONS, "Text completions"),
            Route(get, "/v1/models", _without_tracker(models.list), "List the served models"),
            Route(
                get,
                "/v1/models/",
                _without_tracker(models.get),
                "Get a model; its name may contain slashes",
            ),
            *UsageEndpoints(self.usage, self.options.keys).routes(),
            Route(get, "/openapi.json", _without_tracker(self._openapi), "This document"),
            *ReplicaEndpoints(self.service, self.options).routes(),
            *SessionEndpoints(self.service, self.options, self.draining).routes(),
            *self._health_routes(),
            *self._ui_routes(),
        ]
        for prefix in ("/v1", ""):
            table += [
                Route(
                    post,
                    f"{prefix}/tokenize",
                    _without_tracker(tokens.tokenize),
                    "Convert text to token ids",
                ),
                Route(
                    post,
                    f"{prefix}/detokenize",
                    _without_tracker(tokens.detokenize),
                    "Convert token ids to text",
                ),
            ]
        if self.options.messages_api:
            table += [
                self._generation_route("/v1/messages", MESSAGES, "Anthropic Messages"),
                render.route("/v1/messages", MESSAGES),
                Route(
                    post,
                    "/v1/messages/count_tokens",
                    _without_tracker(tokens.count_tokens),
                    "Count the input tokens of a request",
                    codec=MESSAGES,
                ),
            ]
        return table

    def _ui_routes(self) -> list[Route]:
        if self.ui is None:
            return []
        endpoints = UiEndpoints(self.ui, self.options)
        self.draining.on_start(endpoints.stop)
        return endpoints.routes()

    def _websocket_routes(self) -> list[Route]:
        """Return the routes that can be upgraded to a WebSocket."""
        if not self.options.websockets:
            return []

        async def accept(exchange: ApiExchange, tracker: RequestTracker) -> None:
            exchange.extra_headers.append((MODELS_ETAG_HEADER, self._catalog.current().etag))
            await self._websockets.accept(exchange)

        summary = "OpenAI Responses over a WebSocket"
        return [Route("GET", WEBSOCKET_PATH, accept, summary, codec=RESPONSES)]

    def _health_routes(self) -> list[Route]:
        probes = HealthEndpoints(self.service, self.options.keys, self.draining)
        public_routes: list[tuple[str, Handler, str]] = [
            ("/", _without_tracker(probes.root), "Name and version"),
            ("/live", _without_tracker(probes.live), "Liveness: the process responds"),
            ("/ready", probes.ready, "Readiness: every engine is ready"),
            ("/health", probes.ready, "Alias of /ready"),
        ]
        return [
            *(
                Route("GET", path, handler, summary, needs_key=False, counted=False)
                for path, handler, summary in public_routes
            ),
            Route(
                "GET",
                "/metrics",
                _without_tracker(self._metrics),
                "Metrics in the Prometheus format",
                needs_key=self.options.metrics_need_key,
                counted=False,
            ),
        ]


def _without_tracker(handler: Callable[[ApiExchange], Awaitable[None]]) -> Handler:
    """Adapt a handler that does not use the tracker."""

    async def handle(exchange: ApiExchange, tracker: RequestTracker) -> None:
        await handler(exchange)

    return handle
