"""The order in which pages are evicted, with a fake of the library's cache from 5.19 on."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from dovetail.engines.transformers.child.page_retention import EVICTED_BLOCKS, PageRetention


class Allocator:
    """Holds blocks of requests, and caches those of finished ones by their hashes."""

    index, bytes_per_block = 0, 1

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self.block_table: dict[str, list[int]] = {}
        self.ledger = SimpleNamespace(cached_blocks={}, hash_to_block={}, block_to_hash={})

    def free_blocks(self, request_id: str, no_cache: bool = False) -> None:
        table = self.block_table.pop(request_id, [])
        for number, block in enumerate(table):
            self.ledger.cached_blocks[block] = None
            content = (request_id, len(table) - 1 - number)  # the hook reverses the table
            self.ledger.block_to_hash[block] = content
            self.ledger.hash_to_block[content] = block


class Pool:
    def __init__(self, blocks: int) -> None:
        self.free = list(range(blocks))

    def free_blocks(self, index: int, blocks: Sequence[int]) -> None:
        self.free.extend(blocks)

    def try_to_free_sectors(self) -> None: ...


class Cache:
    """A cache of `num_sectors` blocks."""

    bytes_per_sector = 1

    def __init__(self, blocks: int) -> None:
        self.num_sectors = blocks
        self.pool = Pool(blocks)
        self.allocator = Allocator(self.pool)
        self.cache_allocators = {"full": self.allocator}

    def can_store_request_tokens(self, state: Any, request_len: int, dry_run: bool = False) -> bool:
        if len(self.pool.free) < request_len:
            return False
        taken = [self.pool.free.pop(0) for _ in range(request_len)]
        self.allocator.block_table[state] = taken
        return True

    def compute_free_capacity(self, relative: bool = True) -> float:
        return len(self.pool.free) / (self.num_sectors if relative else 1)

    def run(self, name: str, blocks: int) -> bool:
        """Run a request from its start to its end."""
        stored = self.can_store_request_tokens(name, blocks)
        self.allocator.free_blocks(name)
        return stored

    def cached(self, name: str) -> list[int]:
        """Return the positions of the blocks of a request that are cached."""
        return sorted(at for owner, at in self.allocator.ledger.hash_to_block if owner == name)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def retained_cache(blocks: int) -> tuple[Cache, PageRetention, Clock]:
    cache, clock = Cache(blocks), Clock()
    retention = PageRetention(cache, clock)
    assert retention.is_supported
    for name in "abcd":
        retention.track(f"request {name}", name)
    return cache, retention, clock


def test_full_cache_evicts_what_is_needed_and_the_oldest_first() -> None:
    cache, _, _ = retained_cache(40)
    assert cache.run("a", 20)
    assert cache.run("b", 20)
    assert cache.compute_free_capacity() == 1.0  # all blocks can be evicted
    assert cache.run("c", EVICTED_BLOCKS)
    # The end of the oldest sequence is gone, and its beginning is cached.
    assert cache.cached("a") == list(range(20 - EVICTED_BLOCKS))
    assert cache.cached("b") == list(range(20))


def test_retained_pages_are_evicted_last_until_they_expire() -> None:
    cache, retention, clock = retained_cache(40)
    cache.run("a", 20)
    cache.run("b", 20)
    retention.retain("request a", 10.0)
    cache.run("c", 16)
    assert cache.cached("a") == list(range(20))
    assert cache.cached("b") == list(range(4))
    clock.now = 11.0
    cache.run("d", 16)
    assert len(cache.cached("a")) < 20


def test_retained_pages_do_not_keep_a_request_from_running() -> None:
    cache, retention, _ = retained_cache(40)
    cache.run("a", 30)
    retention.retain("request a", 1e9)
    assert cache.run("b", 40)


def test_request_larger_than_the_cache_is_rejected() -> None:
    cache, _, _ = retained_cache(40)
    cache.run("a", 20)
    assert not cache.run("b", 41)


def test_unknown_versions_of_the_library_are_left_alone() -> None:
    retention = PageRetention(SimpleNamespace())
    assert not retention.is_supported
    retention.track("request a", "a")
    retention.retain("request a", 1.0)
    retention.retain("unknown", 1.0)
