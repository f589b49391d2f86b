"""The simulated prefix cache, compared with a slow and simple implementation."""

from array import array
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.engines.scripted.prefix_cache import PrefixCache

BLOCK = 2


class SlowCache:
    """Identifies every block by all tokens up to its end, with the time of its last use."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used: dict[tuple[str | None, tuple[int, ...]], int] = {}
        self.clock = 0

    def prefixes(
        self, tokens: Sequence[int], salt: str | None
    ) -> list[tuple[str | None, tuple[int, ...]]]:
        ends = range(BLOCK, len(tokens) + 1, BLOCK)
        return [(salt, tuple(tokens[:end])) for end in ends]

    def look_up(self, tokens: Sequence[int], salt: str | None) -> int:
        self.clock += 1
        known = 0
        for block in self.prefixes(tokens, salt):
            if block not in self.used:
                break
            self.used[block] = self.clock
            known += BLOCK
        while known >= len(tokens) and known:
            known -= BLOCK
        return known

    def add(self, tokens: Sequence[int], salt: str | None) -> None:
        self.clock += 1
        for block in self.prefixes(tokens, salt):
            self.used[block] = self.clock
        while len(self.used) > self.capacity:
            oldest = min(self.used, key=lambda block: (self.used[block], -len(block[1])))
            del self.used[oldest]


# Few different blocks in short sequences, so that prefixes match, fork and are evicted.
whole = st.lists(st.sampled_from([(0, 0), (1, 1), (2, 2)]), min_size=1, max_size=3)
tokens = st.builds(
    lambda blocks, rest: [token for block in blocks for token in block] + rest,
    whole,
    st.sampled_from([[], [0], [1]]),
)
steps = st.lists(st.tuples(st.booleans(), tokens, st.sampled_from([None, None, "s"])), max_size=30)


@settings(max_examples=400)
@given(st.integers(0, 6), steps)
def test_matches_the_reference_implementation(
    capacity: int, steps: list[tuple[bool, list[int], str | None]]
) -> None:
    fast, slow = PrefixCache(capacity, BLOCK), SlowCache(capacity)
    for adds, sequence, salt in steps:
        ids = array("I", sequence)
        if adds:
            fast.add(ids, salt)
            slow.add(sequence, salt)
        else:
            assert fast.look_up(ids, salt) == slow.look_up(sequence, salt)
        assert fast.blocks == len(slow.used)


@given(st.lists(st.integers(0, 1), max_size=200), st.lists(st.integers(0, 1), max_size=200))
def test_complete_blocks_of_the_common_prefix_are_cached(one: list[int], other: list[int]) -> None:
    cache = PrefixCache(10_000)
    cache.add(array("I", one))
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    blocks = min(common // 16, (len(other) - 1) // 16) if other else 0
    assert cache.look_up(array("I", other)) == blocks * 16


def test_empty_prompt_has_no_cached_tokens() -> None:
    cache = PrefixCache(100)
    cache.add(array("I", range(64)))
    assert cache.look_up(array("I")) == 0


def test_array_typecode_does_not_matter() -> None:
    cache = PrefixCache(100)
    cache.add(array("q", range(64)))
    assert cache.look_up(array("I", range(65))) == 64


def test_evicted_salts_leave_no_nodes() -> None:
    cache = PrefixCache(8)
    for salt in map(str, range(100)):
        cache.look_up(array("I", range(64)), salt)
        cache.add(array("I", range(64)), salt)
    assert cache.blocks == 8
    assert len(cache._roots) == 2
    assert len(cache._eviction_order) == 2


def test_lookup_steps_grow_with_turns_only() -> None:
    cache = PrefixCache(100_000)
    prompt = array("I", range(50_000))
    for turn in range(10):
        cache.add(prompt)
        prompt.extend(range(turn * 1000, turn * 1000 + 160))
    assert cache.look_up(prompt) == len(prompt) - 160
    assert len(cache._eviction_order) == 10
