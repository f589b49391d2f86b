"""Responses that one connection holds: the last few, each with all that came before it."""

from collections import Counter
from collections.abc import Sequence
from weakref import WeakSet

import msgspec

from dovetail.responses.backend import StoredResponse, response_size
from dovetail.storage.lru import LruCache

DEFAULT_MAX_RESPONSES = 32  # twice as many as a connection can have answered at once
_MAX_DELETED = 1024  # responses that are deleted while one is made

ResponseChain = tuple[StoredResponse, ...]


class ConnectionCacheBudget:
    """How many bytes all connections may hold. Where they hold more, the one that was not used for
    longest holds nothing any more: its client is told so, and sends everything again.
    """

    __slots__ = ("_held",)

    def __init__(self, max_bytes: int) -> None:
        self._held: LruCache[ConnectionCache, int] = LruCache(
            max_size=max_bytes, size_of=int, on_evict=lambda cache, size: cache.clear()
        )

    @property
    def used_bytes(self) -> int:
        return self._held.total_size

    def set_usage(self, cache: "ConnectionCache", size: int) -> None:
        """This connection holds so many bytes now."""
        self._held.put(cache, size)

    def release(self, cache: "ConnectionCache") -> None:
        """It holds nothing any more."""
        self._held.pop(cache)


class ConnectionCache:
    """Found before what everybody can find, and gone with the connection.

    A conversation shares what its responses have in common, so it is held once.
    """

    __slots__ = ("_budget", "_chains", "_held", "_max_responses", "_reservations", "_size")

    def __init__(
        self,
        max_responses: int = DEFAULT_MAX_RESPONSES,
        budget: ConnectionCacheBudget | None = None,
    ) -> None:
        self._max_responses = max_responses
        self._budget = budget
        self._held: LruCache[str, ResponseChain] = LruCache()  # bounded by `_pick_eviction`
        self._chains: Counter[str] = Counter()  # of a response, in how many it stands
        self._size = 0  # what is in several chains counts once
        self._reservations: WeakSet[CacheReservation] = WeakSet()  # of responses in the making

    def reserve(self) -> "CacheReservation":
        """A place for a response before it is known what it goes on from."""
        place = CacheReservation(self)
        self._reservations.add(place)
        return place

    def put(self, previous: Sequence[StoredResponse], response: StoredResponse) -> None:
        """Hold a response that goes on from these. Nobody fetches it here: items are enough."""
        self._drop(response.id)
        self._add((*previous, msgspec.structs.replace(response, head=b"")))
        if len(self._held) > self._max_responses:
            self._drop(self._pick_eviction())
        if self._budget is not None:
            self._budget.set_usage(self, self._size)

    def get_chain(self, id: str) -> ResponseChain | None:
        """The response and all before it, the oldest first; None if it is not held."""
        return self._held.get(id)

    def delete(self, tenant: str, id: str) -> None:
        """It was deleted: as in a store, nothing is gone on from that went on from it."""
        for place in list(self._reservations):
            place.delete(tenant, id)
        if id not in self._chains:
            return
        for last, chain in list(self._held.items()):
            if any(one.id == id and one.tenant == tenant for one in chain):
                self._drop(last)
        if self._budget is not None:
            self._budget.set_usage(self, self._size)

    def clear(self) -> None:
        self._held.clear()
        self._chains.clear()
        self._size = 0

    def close(self) -> None:
        """The connection is gone."""
        self.clear()
        if self._budget is not None:
            self._budget.release(self)

    def _pick_eviction(self) -> str:
        """The oldest that was gone on from, if any was: resting lanes come back to theirs."""
        old = {chain[-2].id for chain in self._held.values() if len(chain) > 1}
        return next((id for id in self._held if id in old), next(iter(self._held)))

    def _add(self, chain: ResponseChain) -> None:
        self._held.put(chain[-1].id, chain)
        for one in chain:
            self._chains[one.id] += 1
            if self._chains[one.id] == 1:
                self._size += response_size(one)

    def _drop(self, id: str) -> None:
        for one in self._held.pop(id) or ():
            self._chains[one.id] -= 1
            if not self._chains[one.id]:
                del self._chains[one.id]
                self._size -= response_size(one)


class CacheReservation:
    """Where a connection will hold a response that is being made.

    What was deleted since it was asked for may be what it goes on from: then it is not held.
    """

    __slots__ = ("__weakref__", "_cache", "_deleted")

    def __init__(self, cache: ConnectionCache) -> None:
        self._cache: ConnectionCache | None = cache
        self._deleted: set[tuple[str, str]] = set()

    def put(self, previous: Sequence[StoredResponse], response: StoredResponse) -> None:
        """Hold it, with all that it goes on from."""
        whole = not any((one.tenant, one.id) in self._deleted for one in (*previous, response))
        if self._cache is not None and whole:
            self._cache.put(previous, response)

    def delete(self, tenant: str, id: str) -> None:
        """It was deleted. Who deletes very many meanwhile has nothing held."""
        self._deleted.add((tenant, id))
        if len(self._deleted) > _MAX_DELETED:
            self._deleted.clear()
            self._cache = None
