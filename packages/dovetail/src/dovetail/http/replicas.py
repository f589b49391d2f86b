"""Admin endpoints that list, add and remove the replicas of models while the server runs."""

from collections.abc import Iterator
from time import monotonic
from typing import Any

import msgspec

from dovetail.access.auth import require_admin_key
from dovetail.http.body import read_body
from dovetail.http.exchange import ApiExchange
from dovetail.http.options import HttpOptions
from dovetail.http.routes import Route
from dovetail.http.tracker import RequestTracker
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.routing.pool import Membership, ReplicaPool
from dovetail.routing.replica import Replica
from dovetail_model import InvalidRequest

REPLICAS_PATH = "/admin/replicas"
_MAX_BODY_BYTES = 1 << 16


class ReplicaBody(msgspec.Struct, forbid_unknown_fields=True):
    """The replica that is added.

    `model`: the model's name; it may be omitted if the server has only one.
    """

    url: str
    model: str | None = None


class ReplicaEndpoints:
    """Endpoints of `/admin/replicas`. They require an admin key, and that the server has keys."""

    def __init__(self, service: ModelRegistry, options: HttpOptions) -> None:
        self._service = service
        self._options = options

    def routes(self) -> Iterator[Route]:
        yield Route("GET", REPLICAS_PATH, self.list, "List the replicas of all models")
        yield Route("POST", REPLICAS_PATH, self.add, "Add a replica")
        yield Route("DELETE", REPLICAS_PATH, self.remove, "Remove the replica with `?url=`")

    async def list(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        """Send all replicas with their state and load."""
        self._require_admin(exchange)
        found = [
            describe_replica(entry.name, entry.engine, replica)
            for entry in self._service.base_models()
            for replica in entry.engine.replicas
        ]
        await exchange.respond(200, msgspec.json.encode({"replicas": found}))

    async def add(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        """Add a replica. One that is not reachable yet gets requests as soon as it is."""
        self._require_admin(exchange)
        content = await read_body(exchange, _MAX_BODY_BYTES, self._options.body_timeout)
        try:
            body = msgspec.json.decode(content, type=ReplicaBody)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            message = f"The body must have `url` and optionally `model`: {error}"
            raise InvalidRequest(message) from error
        entry, membership = self._membership(body.model)
        try:
            replica = await membership.add(body.url)
        except ValueError as error:
            raise InvalidRequest(f"The replica cannot be added: {error}", param="url") from error
        state = describe_replica(entry.name, entry.engine, replica)
        await exchange.respond(200, msgspec.json.encode(state))

    async def remove(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        """Remove a replica. Its active responses are completed first."""
        self._require_admin(exchange)
        url = exchange.query.get("url")
        if url is None:
            raise InvalidRequest("The query parameter `url` is required.", param="url")
        entry, membership = self._membership(exchange.query.get("model"))
        try:
            replica = await membership.remove(url)
        except ValueError as error:
            raise InvalidRequest(f"The replica cannot be removed: {error}", param="url") from error
        state = describe_replica(entry.name, entry.engine, replica) | {"removed": True}
        await exchange.respond(200, msgspec.json.encode(state))

    def _require_admin(self, exchange: ApiExchange) -> None:
        require_admin_key(exchange.caller, has_keys=bool(self._options.keys))

    def _membership(self, name: str | None) -> tuple[TokenModel, Membership]:
        """Return the model and what changes its replicas."""
        models = [*self._service.base_models()]
        if name is None and len(models) != 1:
            names = ", ".join(one.name for one in models)
            raise InvalidRequest(f"`model` must be one of {names or '(none)'}.", param="model")
        entry = models[0] if name is None else self._service.find(name)
        membership = entry.engine.membership if isinstance(entry, TokenModel) else None
        if not isinstance(entry, TokenModel) or membership is None:
            message = f"The replicas of {entry.name} cannot be changed: they have no --engine-url."
            raise InvalidRequest(message, param="model")
        if membership.is_shared:
            raise InvalidRequest(
                "A request reaches only one of the worker processes; change the replicas with "
                "--engine-url-file, which all of them read."
            )
        return entry, membership


def describe_replica(model: str, pool: ReplicaPool, replica: Replica) -> dict[str, Any]:
    """Return the state and the load of a replica as JSON."""
    load, now = pool.router.load(replica.index), monotonic()
    return {
        "model": model,
        "replica": replica.index,
        "url": replica.url,
        "available": replica.is_available,
        "error": replica.failure,
        "active_requests": replica.active_requests,
        "cache_index": pool.index.status.sources.get(replica.index, "requests"),
        "queued_tokens": load.queued_tokens,
        "recent_tokens": round(load.recent.at(now)),
        "resident_tokens": round(load.resident.at(now)),
    }
