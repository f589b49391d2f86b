"""Whether the server lives, and whether it can be asked."""

import asyncio
from importlib.metadata import version
from typing import Any

import msgspec

from dovetail.access.auth import ApiKeys
from dovetail.engines.engine import check_health
from dovetail.http.drain import DrainController
from dovetail.http.exchange import ApiExchange
from dovetail.http.tracker import RequestTracker
from dovetail.pipeline.registry import ModelRegistry
from dovetail_model import Unauthenticated

_VERSION = version("dovetail")
_HEALTH_TIMEOUT_SECONDS = (
    8.0  # seconds that engines may take to say how they are, each replica less
)


class HealthEndpoints:
    """What load balancers and people ask. None of it needs a key.

    Names, addresses and what engines say of themselves are for admins.
    """

    def __init__(self, service: ModelRegistry, keys: ApiKeys, draining: DrainController) -> None:
        self._service = service
        self._keys = keys
        self._draining = draining

    async def root(self, exchange: ApiExchange) -> None:
        """Claude Code asks HEAD / when it starts."""
        body = {"name": "dovetail", "version": _VERSION, "openapi": "/openapi.json"}
        await exchange.respond(200, msgspec.json.encode(body))

    async def live(self, exchange: ApiExchange) -> None:
        """The process answers: that is all."""
        await exchange.respond(200, b'{"status":"live"}')

    async def ready(self, exchange: ApiExchange, account: RequestTracker) -> None:
        """Every engine can take requests, and the server does."""
        if self._draining.started:
            await exchange.respond(503, b'{"status":"draining"}')
            return
        states = await asyncio.gather(
            *(
                check_health(served.engine, _HEALTH_TIMEOUT_SECONDS)
                for served in self._service.entries
            )
        )
        ready = all(state.ready for state in states)
        trusted = self._is_admin(exchange, account)
        engines: list[dict[str, Any]] = [
            {
                "engine": served.engine.name,
                "ready": state.ready,
                **({"detail": state.detail, "facts": state.facts or {}} if trusted else {}),
            }
            for served, state in zip(self._service.entries, states, strict=True)
        ]
        body = {"status": "ready" if ready else "not ready", "engines": engines}
        await exchange.respond(200 if ready else 503, msgspec.json.encode(body))

    def _is_admin(self, exchange: ApiExchange, account: RequestTracker) -> bool:
        """A wrong key changes nothing in the answer, but is told: it may be a guess."""
        try:
            return self._keys.authenticate(exchange.headers).admin
        except Unauthenticated as error:
            if error.reason != "no_key":
                account.on_error(error, 401)
            return False
