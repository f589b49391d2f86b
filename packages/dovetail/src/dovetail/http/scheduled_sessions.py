"""The admin endpoint that lists the sessions that are scheduled."""

from collections.abc import Iterator
from typing import Any

import msgspec

from dovetail.access.auth import require_admin_key
from dovetail.http.drain import DrainController
from dovetail.http.exchange import ApiExchange
from dovetail.http.options import HttpOptions
from dovetail.http.routes import Route
from dovetail.http.tracker import RequestTracker
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.routing.prefill_rate import PrefillRate
from dovetail.routing.session_admission import SessionAdmission

SESSIONS_PATH = "/admin/sessions"


class SessionEndpoints:
    """The endpoint `/admin/sessions`. It requires an admin key, and that the server has keys.

    While the server drains, sessions between turns keep no places: they cannot return.
    """

    def __init__(
        self, service: ModelRegistry, options: HttpOptions, draining: DrainController
    ) -> None:
        self._service = service
        self._options = options
        draining.on_start(self._drain)

    def routes(self) -> Iterator[Route]:
        yield Route("GET", SESSIONS_PATH, self.list, "List the sessions that are scheduled")

    async def list(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        """Send the models with scheduling, their capacity and their sessions."""
        require_admin_key(exchange.caller, has_keys=bool(self._options.keys))
        models = [
            _describe(entry, entry.engine.sessions)
            for entry in self._service.base_models()
            if entry.engine.sessions is not None
        ]
        await exchange.respond(200, msgspec.json.encode({"models": models}))

    def _drain(self) -> None:
        for entry in self._service.base_models():
            if entry.engine.sessions is not None:
                entry.engine.sessions.drain()


def _describe(entry: TokenModel, admission: SessionAdmission) -> dict[str, Any]:
    return {
        "model": entry.name,
        "replicas": [
            {
                "replica": index,
                "capacity_tokens": one.capacity_tokens,
                "used_tokens": one.used_tokens,
                "running_turns": one.running_turns,
                "waiting_turns": one.waiting_turns,
                "suspended": one.is_suspended,
                "prefill_tokens_per_second": _measured(one.prefill_rate),
            }
            for index, one in admission.schedulers()
        ],
        "sessions": [
            {"replica": index, **msgspec.to_builtins(state)}
            for index, state in admission.sessions()
        ],
    }


def _measured(rate: PrefillRate) -> int | None:
    return round(rate.tokens_per_second) if rate.is_measured else None
