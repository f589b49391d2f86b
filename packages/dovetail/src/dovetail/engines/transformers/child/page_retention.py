"""Evict cached pages one after the other, and those of sessions that are expected back last.

From 5.19 on, the library evicts all cached blocks when the cache is full. With these hooks it
evicts as many as a request needs: the least recently used first, the end of a sequence before its
beginning, and the blocks of requests that are to be retained only if no others are left.
Running requests are never delayed: what is retained is only a preference.

Requests are tracked and retained by the thread of the server; the rest runs in the generation
thread.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from threading import Lock
from time import monotonic
from typing import Any

from dovetail.storage.lru import LruCache

#: Evicted at a time.
EVICTED_BLOCKS = 8
MAX_REQUESTS = 1024
MAX_RETAINED_SECONDS = 600.0


class _Released:
    """A request: until when its blocks are retained, and its blocks by allocator when it ended."""

    __slots__ = ("blocks", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self.blocks: dict[int, list[int]] = {}


class PageRetention:
    """Hooks into a cache. `is_supported`: whether the library has the hooked names."""

    def __init__(self, cache: Any, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._cache = cache
        self._requests: LruCache[str, _Released] = LruCache(MAX_REQUESTS)
        self._names: LruCache[str, _Released] = LruCache(MAX_REQUESTS)
        self._allocators = list(getattr(cache, "cache_allocators", {}).values())
        self.is_supported = (
            bool(self._allocators)
            and all(hasattr(one, "ledger") for one in self._allocators)
            and hasattr(cache, "can_store_request_tokens")
        )
        if self.is_supported:
            self._hook_cache(cache)
            for allocator in self._allocators:
                self._hook_release(allocator)

    def track(self, request: str, name: str) -> None:
        """Record a request of the server under the name that the library has for it."""
        released = _Released()
        with self._lock:
            self._requests.put(request, released)
            self._names.put(name, released)

    def retain(self, request: str, seconds: float) -> None:
        """Evict the blocks of a request last, for some time."""
        with self._lock:
            released = self._requests.get(request)
        if released is not None:
            released.until = self._clock() + min(seconds, MAX_RETAINED_SECONDS)

    def _hook_cache(self, cache: Any) -> None:
        can_store, free_capacity = cache.can_store_request_tokens, cache.compute_free_capacity
        total_bytes = cache.num_sectors * cache.bytes_per_sector

        def store(state: Any, request_len: int, dry_run: bool = False) -> bool:
            while not can_store(state, request_len, dry_run):
                if dry_run or not self._evict():
                    return False
            return True

        def compute(relative: bool = True) -> float:
            """Count cached blocks as free: they are evicted when they are needed."""
            cached = sum(len(one.ledger.cached_blocks) * one.bytes_per_block for one in allocators)
            return float(free_capacity(relative) + cached / (total_bytes if relative else 1))

        allocators = self._allocators
        cache.can_store_request_tokens = store
        cache.compute_free_capacity = compute

    def _hook_release(self, allocator: Any) -> None:
        free = allocator.free_blocks

        def release(request_id: str, no_cache: bool = False) -> None:
            table = allocator.block_table.get(request_id)
            if table:
                with self._lock:
                    released = self._names.get(request_id)
                if released is not None:
                    released.blocks[allocator.index] = list(table)
                allocator.block_table[request_id] = table[::-1]
            free(request_id, no_cache)

        allocator.free_blocks = release

    def _evict(self) -> bool:
        """Evict a few blocks of each allocator. Return whether there were any."""
        evicted_any = False
        for allocator in self._allocators:
            ledger = allocator.ledger
            blocks = list(islice(self._order(allocator), EVICTED_BLOCKS))
            for block in blocks:
                del ledger.cached_blocks[block]
                del ledger.hash_to_block[ledger.block_to_hash.pop(block)]
            if blocks:
                self._cache.pool.free_blocks(allocator.index, blocks)
                evicted_any = True
        if evicted_any:
            self._cache.pool.try_to_free_sectors()
        return evicted_any

    def _order(self, allocator: Any) -> Iterator[int]:
        """Iterate over the cached blocks in the order of eviction."""
        retained = self._retained_blocks(allocator.index)
        cached = list(allocator.ledger.cached_blocks)
        yield from (one for one in cached if one not in retained)
        yield from (one for one in cached if one in retained)

    def _retained_blocks(self, index: int) -> set[int]:
        now = self._clock()
        found: set[int] = set()
        with self._lock:
            requests = list(self._requests.values())
        for released in requests:
            if released.until > now:
                found.update(released.blocks.get(index, ()))
        return found
