"""Cache of the latest responses of a WebSocket connection, each with its complete chain."""

from collections import Counter
from collections.abc import Sequence
from weakref import WeakSet

import msgspec

from dovetail.responses.backend import StoredResponse, response_size
from dovetail.storage.lru import LruCache

DEFAULT_MAX_RESPONSES = 32  # twice the concurrent requests of a connection
MAX_TRACKED_DELETIONS = 1024  # deletions recorded while a response is running

ResponseChain = tuple[StoredResponse, ...]


class ConnectionCacheBudget:
    """The total size limit of the caches of all connections.

    When it is exceeded, the cache of the least recently used connection is cleared: its client
    receives an error and sends the complete conversation again.
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
        """Set the size of a connection's cache."""
        self._held.put(cache, size)

    def release(self, cache: "ConnectionCache") -> None:
        """Remove a connection's cache from the budget."""
        self._held.pop(cache)


class ConnectionCache:
    """The responses of one connection, searched before the store.

    Chains share common responses.
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
        self._chains: Counter[str] = Counter()  # response id -> number of chains that contain it
        self._size = 0  # a response in several chains counts once
        self._reservations: WeakSet[CacheReservation] = WeakSet()  # of running responses

    def reserve(self) -> "CacheReservation":
        """Reserve an entry for a response that is about to run."""
        reservation = CacheReservation(self)
        self._reservations.add(reservation)
        return reservation

    def put(self, previous: Sequence[StoredResponse], response: StoredResponse) -> None:
        """Cache a response that continues `previous`, without its head, which is not needed."""
        self._drop(response.id)
        self._add((*previous, msgspec.structs.replace(response, head=b"")))
        if len(self._held) > self._max_responses:
            self._drop(self._pick_eviction())
        if self._budget is not None:
            self._budget.set_usage(self, self._size)

    def get_chain(self, id: str) -> ResponseChain | None:
        """Return the response and its predecessors, oldest first, or None if it is not cached."""
        return self._held.get(id)

    def delete(self, tenant: str, id: str) -> None:
        """Remove a deleted response and all chains that contain it."""
        for reservation in list(self._reservations):
            reservation.delete(tenant, id)
        if id not in self._chains:
            return
        for last, chain in list(self._held.items()):
            if any(one.id == id and one.tenant == tenant for one in chain):
                self._drop(last)
        if self._budget is not None:
            self._budget.set_usage(self, self._size)

    def evict(self, id: str) -> None:
        """Remove a response that its client can no longer continue."""
        self._drop(id)
        if self._budget is not None:
            self._budget.set_usage(self, self._size)

    def clear(self) -> None:
        self._held.clear()
        self._chains.clear()
        self._size = 0

    def close(self) -> None:
        """Clear the cache and release its budget after the connection was closed."""
        self.clear()
        if self._budget is not None:
            self._budget.release(self)

    def _pick_eviction(self) -> str:
        """Return the oldest response that was already continued, else the oldest.

        An idle conversation continues with its last response, which must stay cached.
        """
        continued = {chain[-2].id for chain in self._held.values() if len(chain) > 1}
        return next((id for id in self._held if id in continued), next(iter(self._held)))

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
    """A reserved cache entry for a running response.

    The response is not cached if one of its predecessors was deleted while it ran.
    """

    __slots__ = ("__weakref__", "_cache", "_deleted")

    def __init__(self, cache: ConnectionCache) -> None:
        self._cache: ConnectionCache | None = cache
        self._deleted: set[tuple[str, str]] = set()

    def put(self, previous: Sequence[StoredResponse], response: StoredResponse) -> None:
        """Cache the finished response with its predecessors."""
        intact = not any((one.tenant, one.id) in self._deleted for one in (*previous, response))
        if self._cache is not None and intact:
            self._cache.put(previous, response)

    def delete(self, tenant: str, id: str) -> None:
        """Record a deletion. Above the tracking limit the running response is not cached."""
        self._deleted.add((tenant, id))
        if len(self._deleted) > MAX_TRACKED_DELETIONS:
            self._deleted.clear()
            self._cache = None
