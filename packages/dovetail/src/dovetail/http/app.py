"""The ASGI application. No framework: a table of routes, and one way to answer errors."""

import logging
from collections.abc import Awaitable, Callable

from dovetail.codex_catalog import Catalog
from dovetail.http.account import Account
from dovetail.http.asgi import Receive, Scope, Send
from dovetail.http.errors import Disconnected, refuse, status_of, told
from dovetail.http.exchange import Exchange
from dovetail.http.generate import Generator
from dovetail.http.health import Probes
from dovetail.http.models import CATALOG_TAG, Models
from dovetail.http.openapi import document
from dovetail.http.options import HttpOptions
from dovetail.http.replicas import ReplicaNumbers
from dovetail.http.routes import Handler, Route, Routes, dialect
from dovetail.http.tokens import Tokens
from dovetail.metrics import Metrics
from dovetail.service import Service
from dovetail_model import DovetailError
from dovetail_protocols import COMPLETIONS, MESSAGES, RESPONSES, ChatCodec, Codec

_log = logging.getLogger(__name__)


class App:
    """Serves a service to any ASGI server, which has to support `lifespan`."""

    def __init__(
        self, service: Service, options: HttpOptions | None = None, metrics: Metrics | None = None
    ) -> None:
        self.service = service
        self.options = options or HttpOptions()
        self.metrics = metrics or Metrics()
        self.metrics.registry.register(ReplicaNumbers(service))
        self._chat: Codec = ChatCodec(self.options.reasoning_field)
        self._generator = Generator(service, self.options)
        self._catalog = Catalog(service, self.options.codex_profile)
        self.routes = Routes(self._table())
        self._document = document(self.routes.all)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._respond(Exchange(scope, receive, send))
            case "lifespan":
                await self._live(receive, send)
            case "websocket":
                await send({"type": "websocket.close"})

    async def _respond(self, exchange: Exchange) -> None:
        """One request. Whatever goes wrong is told in the client's own dialect."""
        route = self.routes.find(exchange.path)
        endpoint = "unknown" if route is None else route.endpoint
        account = Account(exchange, endpoint, self.metrics, log_prefix=self.options.log_prefix)
        if route is not None and not route.counted:
            await self._try(exchange, account)
            return
        account.open()
        try:
            await self._try(exchange, account)
        finally:
            account.close()

    async def _try(self, exchange: Exchange, account: Account) -> None:
        try:
            route = self.routes.require(exchange)
            if route.needs_key:
                exchange.tenant = self.options.keys.tenant(exchange.headers)
            await route.handler(exchange, account)
        except Disconnected:
            account.hung_up()
        except Exception as error:
            codec, failure = dialect(exchange, self._chat), told(error)
            account.failed(failure, status_of(failure, codec))
            if exchange.status is not None:
                raise  # the server cuts the connection: half an answer must not look whole
            await refuse(exchange, codec, failure)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Starts the service before the first request, stops it after the last."""
        await receive()
        try:
            await self.service.start()
        except Exception as error:
            # What we say ourselves is clear without the way it took through the code.
            fault = None if isinstance(error, DovetailError) else error
            _log.error("start_failed", exc_info=fault, extra={"fields": {"reason": str(error)}})
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        try:
            await self.service.stop()
        finally:
            await send({"type": "lifespan.shutdown.complete"})

    async def _metrics(self, exchange: Exchange) -> None:
        body, content_type = self.metrics.render(exchange.headers.get("accept", ""))
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

    def _probes(self) -> list[Route]:
        probes = Probes(self.service, self.options.keys)
        open_to_all = [
            ("/", probes.root, "Name and version"),
            ("/live", probes.live, "Whether the process answers"),
            ("/ready", probes.ready, "Whether every engine is ready"),
            ("/health", probes.ready, "The same as /ready"),
        ]
        return [
            *(
                Route("GET", path, _plain(handler), summary, needs_key=False, counted=False)
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
