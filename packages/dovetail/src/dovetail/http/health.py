"""Whether the server lives, and whether it can be asked."""

import asyncio
from importlib.metadata import version
from typing import Any

import msgspec

from dovetail.engines.engine import Health
from dovetail.http.auth import Keys
from dovetail.http.exchange import Exchange
from dovetail.service import Offered, Service
from dovetail_model import Unauthenticated

_VERSION = version("dovetail")
_PATIENCE = 5.0  # seconds that an engine may take to say how it is


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
        states = await asyncio.gather(*map(_health, self._service.served))
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


async def _health(served: Offered) -> Health:
    """An engine that fails to answer is not ready, whatever the reason."""
    try:
        async with asyncio.timeout(_PATIENCE):
            return await served.engine.health()
    except TimeoutError:
        return Health(False, "no answer")
    except Exception as error:
        return Health(False, type(error).__name__)
