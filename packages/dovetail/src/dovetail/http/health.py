"""Whether the server lives, and whether it can be asked."""

import asyncio
from importlib.metadata import version
from typing import Any

import msgspec

from dovetail.engines.engine import health_of
from dovetail.http.auth import Keys
from dovetail.http.exchange import Exchange
from dovetail.service import Service
from dovetail_model import Unauthenticated

_VERSION = version("dovetail")
_PATIENCE = 8.0  # seconds that engines may take to say how they are, each replica less


class Probes:
    """What load balancers and people ask. None of it needs a key.

    Names, addresses and what engines say of themselves are for those who have one.
    """

    def __init__(self, service: Service, keys: Keys) -> None:
        self._service = service
        self._keys = keys

    async def root(self, exchange: Exchange) -> None:
        """Claude Code asks HEAD / when it starts."""
        body = {"name": "dovetail", "version": _VERSION, "openapi": "/openapi.json"}
        await exchange.answer(200, msgspec.json.encode(body))

    async def live(self, exchange: Exchange) -> None:
        """The process answers: that is all."""
        await exchange.answer(200, b'{"status":"live"}')

    async def ready(self, exchange: Exchange) -> None:
        """Every engine can take requests."""
        states = await asyncio.gather(
            *(health_of(served.engine, _PATIENCE) for served in self._service.served)
        )
        ready = all(state.ready for state in states)
        trusted = self._trusts(exchange)
        engines: list[dict[str, Any]] = [
            {
                "engine": served.engine.name,
                "ready": state.ready,
                **({"detail": state.detail, "facts": state.facts or {}} if trusted else {}),
            }
            for served, state in zip(self._service.served, states, strict=True)
        ]
        body = {"status": "ready" if ready else "not ready", "engines": engines}
        await exchange.answer(200 if ready else 503, msgspec.json.encode(body))

    def _trusts(self, exchange: Exchange) -> bool:
        try:
            self._keys.tenant(exchange.headers)
        except Unauthenticated:
            return False
        return True
