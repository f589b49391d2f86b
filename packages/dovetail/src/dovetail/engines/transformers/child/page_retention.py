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


class _Retention:
    """Until when the blocks of a request are retained.

    `requested`: set by the thread of the server. None: nothing was requested.
    `inherited`: from the request whose blocks it reused, which applies until then.
    """

    __slots__ = ("inherited", "requested")

    def __init__(self) -> None:
        self.requested: float | None = None
        self.inherited = 0.0

    @property
    def until(self) -> float:
        requested = self.requested
        return self.inherited if requested is None else requested


class _CachedBlocks:
    """The cached blocks of an allocator, by the last request that had them in its block table.

    Blocks are cached when this request ends, so the order of the requests is the order of use.
    Blocks that a running request has reused remain here, until it ends or `pop` skips them.
    """

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self._owners: dict[int, _Retention] = {}
        # The least recently used request first, the beginning of a sequence first. With hashes.
        self._blocks: dict[_Retention, dict[int, int]] = {}

    def release(self, table: list[int], retention: _Retention) -> None:
        """Record which blocks are cached after the end of a request with this block table."""
        cached, hashes = self._ledger.cached_blocks, self._ledger.block_to_hash
        previous = None
        for block in table:
            previous = self._remove(block, hashes.get(block)) or previous
        if previous is not None:
            retention.inherited = previous.until
        released = {block: hashes[block] for block in table if block in cached}
        if released:
            # The library may restart a request, which then ends twice.
            self._blocks[retention] = self._blocks.pop(retention, {}) | released
            self._owners.update(dict.fromkeys(released, retention))

    def pop(self, now: float) -> Iterator[int]:
        """Remove and return cached blocks in the order of eviction, each when it is consumed."""
        retentions = list(self._blocks)
        for retention in retentions:
            if retention.until <= now:
                yield from self._pop_blocks(retention)
        for retention in retentions:
            yield from self._pop_blocks(retention)
        yield from list(self._ledger.cached_blocks)  # those that no request has released

    def _pop_blocks(self, retention: _Retention) -> Iterator[int]:
        while blocks := self._blocks.get(retention):
            block, _ = blocks.popitem()  # unlike `del` at one end, this leaves no gap to skip
            del self._owners[block]
            if not blocks:
                del self._blocks[retention]
            if block in self._ledger.cached_blocks:  # otherwise in use, or evicted by the library
                yield block

    def _remove(self, block: int, block_hash: int | None) -> _Retention | None:
        """Remove a block. Return the retention of its request if the block still has this hash."""
        retention = self._owners.pop(block, None)
        if retention is None:
            return None
        blocks = self._blocks[retention]
        is_unchanged = blocks.pop(block) == block_hash
        if not blocks:
            del self._blocks[retention]
        return retention if is_unchanged else None


class PageRetention:
    """Hooks into a cache. `is_supported`: whether the library has the hooked names."""

    def __init__(self, cache: Any, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._cache = cache
        self._requests: LruCache[str, _Retention] = LruCache(MAX_REQUESTS)
        self._names: LruCache[str, _Retention] = LruCache(MAX_REQUESTS)
        allocators = list(getattr(cache, "cache_allocators", {}).values())
        self.is_supported = (
            bool(allocators)
            and all(hasattr(one, "ledger") for one in allocators)
            and hasattr(cache, "can_store_request_tokens")
        )
        self._allocators: list[tuple[Any, _CachedBlocks]] = []
        if self.is_supported:
            self._allocators = [(one, _CachedBlocks(one.ledger)) for one in allocators]
            self._hook_cache(cache)
            for allocator, cached in self._allocators:
                self._hook_release(allocator, cached)

    def track(self, request: str, name: str) -> None:
        """Record a request of the server under the name that the library has for it."""
        retention = _Retention()
        with self._lock:
            self._requests.put(request, retention)
            self._names.put(name, retention)

    def retain(self, request: str, seconds: float) -> None:
        """Evict the blocks of a request last, for some time.

        This replaces what was requested for earlier requests with the same blocks.
        """
        with self._lock:
            retention = self._requests.get(request)
        if retention is not None:
            retention.requested = self._clock() + min(seconds, MAX_RETAINED_SECONDS)

    def _hook_cache(self, cache: Any) -> None:
        can_store, free_capacity = cache.can_store_request_tokens, cache.compute_free_capacity
        total_bytes = cache.num_sectors * cache.bytes_per_sector

        def store(state: Any, request_len: int, dry_run: bool = False) -> bool:
            if can_store(state, request_len, dry_run):
                return True
            return not dry_run and any(can_store(state, request_len) for _ in self._evict())

        def compute(relative: bool = True) -> float:
            """Count cached blocks as free: they are evicted when they are needed."""
            cached = sum(len(one.ledger.cached_blocks) * one.bytes_per_block for one in allocators)
            return float(free_capacity(relative) + cached / (total_bytes if relative else 1))

        allocators = [one for one, _ in self._allocators]
        cache.can_store_request_tokens = store
        cache.compute_free_capacity = compute

    def _hook_release(self, allocator: Any, cached: _CachedBlocks) -> None:
        free = allocator.free_blocks

        def release(request_id: str, no_cache: bool = False) -> None:
            table = list(allocator.block_table.get(request_id, ()))
            free(request_id, no_cache)
            with self._lock:
                retention = self._names.get(request_id)
            cached.release(table, retention or _Retention())

        allocator.free_blocks = release

    def _evict(self) -> Iterator[None]:
        """Evict a few blocks of each allocator at a time, until there are none."""
        now = self._clock()
        allocators = [(one, cached.pop(now)) for one, cached in self._allocators]
        evicted_any = True
        while evicted_any:
            evicted_any = False
            for allocator, order in allocators:
                ledger, blocks = allocator.ledger, list[int]()
                for block in islice(order, EVICTED_BLOCKS):
                    del ledger.cached_blocks[block]
                    del ledger.hash_to_block[ledger.block_to_hash.pop(block)]
                    blocks.append(block)
                if blocks:
                    self._cache.pool.free_blocks(allocator.index, blocks)
                    evicted_any = True
            if evicted_any:
                self._cache.pool.try_to_free_sectors()
                yield
