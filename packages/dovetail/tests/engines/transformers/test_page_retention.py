"""The order in which pages are evicted, with a fake of the library's cache from 5.19 on."""

from collections import deque
from collections.abc import Iterator, Sequence
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
        for number, block in enumerate(self.block_table.pop(request_id, [])):
            if no_cache:
                self.ledger.hash_to_block.pop(self.ledger.block_to_hash.pop(block, None), None)
                self._pool.free.append(block)
                continue
            self.ledger.cached_blocks[block] = None
            content = self.ledger.block_to_hash.setdefault(block, (request_id, number))
            self.ledger.hash_to_block[content] = block


class Pool:
    def __init__(self, blocks: int) -> None:
        self.free = deque(range(blocks))

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
        taken = [self.pool.free.popleft() for _ in range(request_len)]
        self.allocator.block_table.setdefault(state, []).extend(taken)
        return True

    def compute_free_capacity(self, relative: bool = True) -> float:
        return len(self.pool.free) / (self.num_sectors if relative else 1)

    def run(self, name: str, blocks: int) -> bool:
        """Run a request from its start to its end."""
        stored = self.can_store_request_tokens(name, blocks)
        self.allocator.free_blocks(name)
        return stored

    def reuse(self, name: str, previous: str, blocks: int | None = None) -> None:
        """Start a request with the first blocks of a previous one, which are cached."""
        ledger = self.allocator.ledger
        table = [ledger.hash_to_block[previous, at] for at in self.cached(previous)[:blocks]]
        for block in table:
            del ledger.cached_blocks[block]
        self.allocator.block_table[name] = table

    def evict_all(self) -> None:
        """Evict all cached blocks, as the library does by itself when requests starve."""
        ledger = self.allocator.ledger
        self.pool.free.extend(ledger.cached_blocks)
        for block in ledger.cached_blocks:
            del ledger.hash_to_block[ledger.block_to_hash.pop(block)]
        ledger.cached_blocks.clear()

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
    for name in "abcdef":
        retention.track(f"request {name}", name)
    return cache, retention, clock


def test_pages_that_no_request_has_released_are_evicted_as_well() -> None:
    cache = Cache(30)
    assert cache.run("before", 30)
    PageRetention(cache)
    assert cache.run("a", 25)
    assert cache.run("b", 30)


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


def test_pages_that_were_evicted_are_not_retained_for_the_request_that_has_them_now() -> None:
    for is_retained in (False, True):
        cache, retention, _ = retained_cache(80)
        cache.run("a", 40)
        if is_retained:
            retention.retain("request a", 600.0)
        cache.run("b", 80)
        cache.run("c", 40)
        cache.run("d", 32)
        assert [len(cache.cached(name)) for name in "abcd"] == [0, 8, 40, 32]


def test_pages_that_the_library_evicted_by_itself_are_not_retained_either() -> None:
    cache, retention, _ = retained_cache(40)
    cache.run("a", 20)
    cache.run("b", 20)
    retention.retain("request a", 600.0)
    cache.evict_all()
    cache.run("c", 20)  # with the pages that "a" had
    cache.run("d", 20)
    cache.run("e", 16)
    assert [len(cache.cached(name)) for name in "abcde"] == [0, 0, 4, 20, 16]


def test_pages_that_are_freed_without_caching_are_not_retained() -> None:
    cache, retention, _ = retained_cache(40)
    cache.run("a", 20)
    cache.run("b", 20)
    retention.retain("request a", 600.0)
    cache.reuse("c", "a")
    cache.allocator.free_blocks("c", no_cache=True)  # moved to the CPU
    cache.run("d", 20)  # with the pages that "a" had
    cache.run("e", 20)
    cache.run("f", 16)
    assert [len(cache.cached(name)) for name in "abdef"] == [0, 0, 0, 20, 16]


def next_turn(cache: Cache, name: str, previous: str) -> None:
    """Run a request that continues another one with 8 more blocks."""
    cache.reuse(name, previous)
    cache.run(name, 8)


def test_latest_turn_decides_for_how_long_its_pages_are_retained() -> None:
    cache, retention, _ = retained_cache(60)
    cache.run("a", 20)
    retention.retain("request a", 600.0)
    next_turn(cache, "b", "a")
    retention.retain("request b", 0.0)
    cache.run("c", 32)
    cache.run("d", 24)
    assert [len(cache.cached(name)) for name in "abcd"] == [4, 0, 32, 24]


def test_pages_stay_retained_until_the_latest_turn_has_decided() -> None:
    cache, retention, _ = retained_cache(60)
    cache.run("a", 20)
    retention.retain("request a", 600.0)
    next_turn(cache, "b", "a")
    cache.run("c", 32)
    cache.run("d", 16)
    assert [len(cache.cached(name)) for name in "abcd"] == [20, 8, 16, 16]


def test_pages_of_running_requests_are_not_evicted() -> None:
    cache, _, _ = retained_cache(40)
    cache.run("a", 20)
    cache.run("b", 20)
    cache.reuse("c", "a", 12)
    assert cache.run("d", 16)
    assert [len(cache.cached(name)) for name in "abd"] == [12, 12, 16]
    assert len(cache.allocator.block_table["c"]) == 12
    cache.allocator.free_blocks("c")
    cache.run("e", 16)
    # Those of "c" were used after those of "b".
    assert [len(cache.cached(name)) for name in "abde"] == [12, 0, 12, 16]


def test_retained_pages_do_not_keep_a_request_from_running() -> None:
    cache, retention, _ = retained_cache(40)
    cache.run("a", 30)
    retention.retain("request a", 1e9)
    assert cache.run("b", 40)


class CountingBlocks(dict[int, None]):
    """Counts how often blocks are looked up or listed."""

    count = 0

    def __contains__(self, block: object) -> bool:
        self.count += 1
        return super().__contains__(block)

    def __iter__(self) -> Iterator[int]:
        for block in super().__iter__():
            self.count += 1
            yield block


def test_cost_of_an_eviction_does_not_depend_on_the_number_of_cached_pages() -> None:
    cache, retention, _ = retained_cache(4000)
    cached = cache.allocator.ledger.cached_blocks = CountingBlocks()
    for number, name in enumerate("abcdef"):
        cache.run(name, 660)
        if number < 4:
            retention.retain(f"request {name}", 600.0)
    cache.reuse("next", "e")
    cached.count = 0
    assert cache.can_store_request_tokens("new", 400)
    assert [len(cache.cached(name)) for name in "abcd"] == [660] * 4
    # It has skipped the pages that are in use, once.
    assert cached.count <= 660 + 400
    cached.count = 0
    assert cache.can_store_request_tokens("new", 80)
    assert cached.count <= 80


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
