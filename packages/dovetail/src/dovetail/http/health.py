"""Liveness and readiness endpoints."""

import asyncio
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from dovetail.access.auth import ApiKeys, Caller
from dovetail.engines.engine import EngineHealth, check_health
from dovetail.http.drain import DrainController
from dovetail.http.exchange import ApiExchange
from dovetail.http.tracker import RequestTracker
from dovetail.pipeline.registry import ModelRegistry
from dovetail_model import Unauthenticated

_VERSION = version("dovetail")
_HEALTH_TIMEOUT_SECONDS = 8.0  # for an engine with all its replicas; each replica has less


class HealthEndpoints:
    """Endpoints for load balancers and operators. None of them requires a key.

    Without a valid key, they show only the status, unless the server requires no key. Only admin
    keys see the details of engines, which include names and addresses.
    """

    def __init__(self, service: ModelRegistry, keys: ApiKeys, draining: DrainController) -> None:
        self._service = service
        self._keys = keys
        self._draining = draining

    async def root(self, exchange: ApiExchange) -> None:
        """Send the name and version of the server. Claude Code sends HEAD / when it starts."""
        body = {"name": "dovetail", "version": _VERSION, "openapi": "/openapi.json"}
        await exchange.respond(200, msgspec.json.encode(body))

    async def live(self, exchange: ApiExchange) -> None:
        """Report that the process responds, whatever the state of its engines."""
        await exchange.respond(200, b'{"status":"live"}')

    async def ready(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        """Report whether the server and every engine accept requests."""
        if self._draining.started:
            await exchange.respond(503, b'{"status":"draining"}')
            return
        states = await asyncio.gather(
            *(
                check_health(entry.engine, _HEALTH_TIMEOUT_SECONDS)
                for entry in self._service.entries
            )
        )
        ready = all(state.ready for state in states)
        body: dict[str, Any] = {"status": "ready" if ready else "not ready"}
        caller = self._authenticate(exchange, tracker)
        if caller is not None:
            body |= self._describe(states, is_admin=caller.admin)
        await exchange.respond(200 if ready else 503, msgspec.json.encode(body))

    def _describe(self, states: Sequence[EngineHealth], *, is_admin: bool) -> dict[str, Any]:
        """Describe the engines, and for an admin also the stores."""
        engines: list[dict[str, Any]] = [
            {
                "engine": entry.engine.name,
                "ready": state.ready,
                **({"detail": state.detail, "facts": state.facts or {}} if is_admin else {}),
            }
            for entry, state in zip(self._service.entries, states, strict=True)
        ]
        if not is_admin:
            return {"engines": engines}
        stores = [
            {"store": store.name, "available": not store.unavailable, "gap_at": store.gap_at}
            for store in self._service.store_faults
        ]
        return {"engines": engines, "stores": stores}

    def _authenticate(self, exchange: ApiExchange, tracker: RequestTracker) -> Caller | None:
        """Return the caller, or None without a valid key. An invalid key is logged: a guess."""
        try:
            return self._keys.authenticate(exchange.headers)
        except Unauthenticated as error:
            if error.reason != "no_key":
                tracker.on_error(error, 401)
            return None
