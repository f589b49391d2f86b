"""The ASGI application. No framework: a table of routes, and one way to answer errors."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from dovetail.access.auth import ANONYMOUS, require_admin
from dovetail.http.capture import Capture
from dovetail.http.collectors import ReplicaNumbers
from dovetail.http.drain import Draining
from dovetail.http.errors import refuse, status_of, told
from dovetail.http.exchange import Exchange
from dovetail.http.generation import Generator
from dovetail.http.health import Probes
from dovetail.http.memory import NoRoom, held
from dovetail.http.models import CATALOG_TAG, Models
from dovetail.http.openapi import document
from dovetail.http.options import HttpOptions
from dovetail.http.published import Catalog
from dovetail.http.responses.background import Background
from dovetail.http.responses.endpoints import Responses
from dovetail.http.responses.run import Key
from dovetail.http.routes import Handler, Route, Routes, dialect
from dovetail.http.stores import StoreNumbers
from dovetail.http.tokens import Tokens
from dovetail.http.tracker import Account
from dovetail.http.websocket.endpoint import SOCKET_PATH, Sockets
from dovetail.net.asgi import Receive, Scope, Send
from dovetail.net.exchange import ClientDisconnected
from dovetail.net.trace_context import SpanFactory, trace_scope
from dovetail.pipeline.registry import ModelRegistry
from dovetail.telemetry.log_throttle import LogThrottle
from dovetail.telemetry.metrics import Metrics
from dovetail.telemetry.record import RequestRecorder
from dovetail_model import DovetailError
from dovetail_protocols import COMPACT, COMPLETIONS, MESSAGES, RESPONSES, ChatCodec, Codec

_log = logging.getLogger(__name__)


class App:
    """Serves a service to any ASGI server, which has to support `lifespan`."""

    def __init__(
        self,
        service: ModelRegistry,
        options: HttpOptions | None = None,
        metrics: Metrics | None = None,
        recorders: Sequence[RequestRecorder] = (),
    ) -> None:
        self.service = service
        self.recorders = recorders
        self._begin_span = next((one.start_span for one in recorders if isinstance(one, SpanFactory)), None)
        self.options = options or HttpOptions()
        self.metrics = metrics or Metrics()
        self.metrics.registry.register(ReplicaNumbers(service))
        self.metrics.registry.register(StoreNumbers(service.store_faults))
        self.metrics.track_held_body_bytes(lambda: held.size)
        self._hush = LogThrottle()
        self.fault: str | None = None  # why the service did not start
        self._chat: Codec = ChatCodec(self.options.reasoning_field)
        #: What a scrape is answered with: all numbers, also of other processes where there are any.
        self.numbers: Callable[[str], Awaitable[tuple[bytes, str]]] = self._own_numbers
        self.draining = Draining(self.options.drain_timeout)
        self.draining.on_begin(lambda: self.metrics.set_draining(True))
        self.background = Background(service.response_store, self.metrics, self.draining)
        self._generator = Generator(
            service, self.options, self.draining, self.metrics, self.background
        )
        self._catalog = Catalog(service, self.options.codex_profile)
        self._sockets = Sockets(
            self._respond, self.draining, self.metrics, self.options.max_body_bytes
        )
        self.routes = Routes(self._table(), self._upgrades())
        self._document = document(self.routes.all)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            self.options.peers.set_client(scope)
        match scope["type"]:
            case "http":
                await self._respond(Exchange(scope, receive, send))
            case "lifespan":
                await self._live(receive, send)
            case "websocket":
                await self._sockets.serve(scope, receive, send)

    async def forget(self, key: Key) -> None:
        """Lets go of what this process still has of a response that was deleted."""
        self._sockets.forget(*key)
        await self.background.abandon(key)

    async def _respond(self, exchange: Exchange) -> None:
        """One request, in the trace that its client names."""
        with trace_scope(exchange.headers, self._begin_span):
            await self._account_for(exchange)

    async def _account_for(self, exchange: Exchange) -> None:
        """One request. Whatever goes wrong is told in the client's own dialect."""
        route = self.routes.find(exchange.path, exchange.method)
        endpoint = "unknown" if route is None else route.endpoint
        account = Account(
            exchange,
            endpoint,
            self.metrics,
            log_prefix=self.options.log_prefix,
            recorders=self.recorders,
        )
        if route is not None and not route.counted:
            await self._try(exchange, account)
            if account.refused:  # probes are many, but whoever tries keys on them is told of
                account.open()
                self._close(exchange, account)
            return
        account.open()
        capture = Capture(exchange) if self.options.keep_payloads else None
        try:
            await self._try(exchange, account)
        finally:
            if not account.detached:
                self._close(exchange, account, None if capture is None else capture.answer)

    async def _try(self, exchange: Exchange, account: Account) -> None:
        try:
            route = self.routes.require(exchange)
            if route.needs_key:
                exchange.caller = self.options.keys.authenticate(exchange.headers)
                exchange.tenant = exchange.caller.tenant
            await route.handler(exchange, account)
        except ClientDisconnected:
            account.hung_up()
        except Exception as error:
            codec, failure = dialect(exchange, self._chat), told(error)
            account.failed(failure, status_of(failure, codec))
            if isinstance(failure, NoRoom):
                self.metrics.count_rate_limited(failure.reason)
            if exchange.status is not None:
                raise  # the server cuts the connection: half an answer must not look whole
            await refuse(exchange, codec, failure)

    def _close(self, exchange: Exchange, account: Account, answer: bytes | None = None) -> None:
        """The request is over. Strangers who are refused do not fill the log."""
        if account.erred and exchange.caller is ANONYMOUS and not self._hush.allow(exchange.peer):
            account.mute()
        account.close(answer)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Starts the service before the first request, stops it after the last."""
        await receive()
        try:
            await self.service.start()
        except Exception as error:
            # What we say ourselves is clear without the way it took through the code: whoever
            # started the server tells it.
            if not isinstance(error, DovetailError):
                fields = {"reason": str(error)}
                _log.error("start_failed", exc_info=error, extra={"fields": fields})
            self.fault = str(error)
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.background.close()
        try:
            await self.service.stop()
        finally:
            for recorder in self.recorders:
                await asyncio.to_thread(recorder.close)
            await send({"type": "lifespan.shutdown.complete"})

    async def _own_numbers(self, accept: str) -> tuple[bytes, str]:
        return self.metrics.render(accept)

    async def _metrics(self, exchange: Exchange) -> None:
        if self.options.metrics_need_key:
            require_admin(exchange.caller)
        body, content_type = await self.numbers(exchange.headers.get("accept", ""))
        await exchange.answer(200, body, content_type)

    async def _openapi(self, exchange: Exchange) -> None:
        await exchange.answer(200, self._document)

    def _generates(self, codec: Codec) -> Handler:
        async def handle(exchange: Exchange, account: Account) -> None:
            if codec is RESPONSES:
                exchange.extra.append((CATALOG_TAG, self._catalog.current().etag))
            await self._generator.generate(exchange, account, codec)

        return handle

    def _table(self) -> list[Route]:
        models, tokens = Models(self.service, self._catalog), Tokens(self.service, self.options)
        post, get = "POST", "GET"
        table = [
            Route(post, "/v1/responses", self._generates(RESPONSES), "OpenAI Responses"),
            Route(post, "/v1/responses/compact", self._generates(COMPACT), "A summary instead"),
            *Responses(self.service, self.options, self.background, self.forget).routes(),
            Route(post, "/v1/chat/completions", self._generates(self._chat), "Chat Completions"),
            Route(post, "/v1/completions", self._generates(COMPLETIONS), "Text completions"),
            Route(get, "/v1/models", _plain(models.list), "Models that are served"),
            Route(get, "/v1/models/", _plain(models.one), "One model; its name may have slashes"),
            Route(get, "/openapi.json", _plain(self._openapi), "This document"),
            *self._probes(),
        ]
        for prefix in ("/v1", ""):
            table += [
                Route(post, f"{prefix}/tokenize", _plain(tokens.tokenize), "Text to ids"),
                Route(post, f"{prefix}/detokenize", _plain(tokens.detokenize), "Ids to text"),
            ]
        if self.options.messages_api:
            table += [
                Route(post, "/v1/messages", self._generates(MESSAGES), "Anthropic Messages"),
                Route(post, "/v1/messages/count_tokens", _plain(tokens.count), "Exact input size"),
            ]
        return table

    def _upgrades(self) -> list[Route]:
        """Where a client may ask for a WebSocket."""
        if not self.options.websockets:
            return []

        async def accept(exchange: Exchange, account: Account) -> None:
            exchange.extra.append((CATALOG_TAG, self._catalog.current().etag))
            await self._sockets.accept(exchange)

        return [Route("GET", SOCKET_PATH, accept, "OpenAI Responses over a WebSocket")]

    def _probes(self) -> list[Route]:
        probes = Probes(self.service, self.options.keys, self.draining)
        open_to_all: list[tuple[str, Handler, str]] = [
            ("/", _plain(probes.root), "Name and version"),
            ("/live", _plain(probes.live), "Whether the process answers"),
            ("/ready", probes.ready, "Whether every engine is ready"),
            ("/health", probes.ready, "The same as /ready"),
        ]
        return [
            *(
                Route("GET", path, handler, summary, needs_key=False, counted=False)
                for path, handler, summary in open_to_all
            ),
            Route(
                "GET",
                "/metrics",
                _plain(self._metrics),
                "Numbers for Prometheus",
                needs_key=self.options.metrics_need_key,
                counted=False,
            ),
        ]


def _plain(handler: Callable[[Exchange], Awaitable[None]]) -> Handler:
    """A handler that has nothing to add to its request's account."""

    async def handle(exchange: Exchange, account: Account) -> None:
        await handler(exchange)

    return handle
