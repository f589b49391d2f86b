"""Block hashes and the approximate index."""

import asyncio
from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.engines.engine import EngineRequest
from dovetail.routing.prefix_index import MAX_INLINE_TOKENS, BlockCache, LocalIndex
from dovetail.routing.prompt_hashes import INDEX_BLOCK_TOKENS, PromptHasher

PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=40), min_size=1, max_size=6)


@settings(max_examples=40)
@given(prompts=PROMPTS)
def test_incremental_hashes_equal_those_of_a_fresh_hasher(prompts: list[list[int]]) -> None:
    hasher = PromptHasher(block_tokens=4)
    for ids in prompts:
        prompt = array("I", ids)
        assert hasher.hash_prompt("s", prompt) == PromptHasher(4).hash_prompt(None, prompt)


@settings(max_examples=40)
@given(prompts=PROMPTS)
def test_hashes_are_equal_exactly_for_equal_prefixes(prompts: list[list[int]]) -> None:
    hasher = PromptHasher(block_tokens=4)
    hashed = [(ids, hasher.hash_prompt(None, array("I", ids)).sequences) for ids in prompts]
    for ids, hashes in hashed:
        for other, others in hashed:
            for block in range(min(len(hashes), len(others))):
                end = 4 * (block + 1)
                assert (hashes[block] == others[block]) == (ids[:end] == other[:end])


def test_only_new_blocks_are_hashed() -> None:
    hasher = PromptHasher(block_tokens=16)
    prompt = array("I", range(16_000))
    hasher.hash_prompt("s", prompt)
    assert hasher.computed_blocks == 1000
    hasher.hash_prompt("s", prompt + array("I", range(40)))
    assert hasher.computed_blocks == 1002
    edited = array("I", prompt)
    edited[8000] = 1
    hasher.hash_prompt("s", edited)
    assert hasher.computed_blocks == 1502


def test_memory_for_earlier_prompts_is_bounded() -> None:
    hasher = PromptHasher(block_tokens=16, max_held_bytes=4 * 1600)
    for session in "abc":
        hasher.hash_prompt(session, array("I", range(800)))
    assert hasher.computed_blocks == 150
    hasher.hash_prompt("a", array("I", range(800)))
    assert hasher.computed_blocks == 200  # evicted
    hasher.hash_prompt("c", array("I", range(800)))
    assert hasher.computed_blocks == 200


def test_salts_and_adapters_separate_prefixes() -> None:
    hasher, prompt = PromptHasher(block_tokens=4), array("I", range(8))
    plain = set(hasher.hash_prompt("s", prompt).sequences)
    for scope in (("salt", None), (None, "adapter")):
        assert not plain & set(hasher.hash_prompt("s", prompt, scope).sequences)


@settings(max_examples=40)
@given(
    prompts=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12)), max_size=40),
    capacity=st.integers(1, 30),
)
def test_cache_is_closed_under_prefixes(prompts: list[tuple[int, int]], capacity: int) -> None:
    """The binary search of `match` relies on this."""
    cache = BlockCache(capacity)
    chains = [[chain * 100 + block for block in range(12)] for chain in range(4)]
    for chain, length in prompts:
        cache.store(chains[chain][:length])
        assert len(cache) <= capacity
        assert cache.match(chains[chain][:length]) == min(length, capacity)
    for blocks in chains:
        cached = [cache.match([block]) == 1 for block in blocks]
        assert cached == sorted(cached, reverse=True)
        assert cache.match(blocks) == sum(cached)


def _request(tokens: int, salt: str | None = None) -> EngineRequest:
    return EngineRequest("r", array("I", range(tokens)), 10, session="s", cache_salt=salt)


def test_index_of_requests_reports_complete_blocks_per_replica() -> None:
    async def check() -> None:
        index = LocalIndex()
        first = await index.find(_request(1000))
        assert first.overlaps == {}
        index.record(1, first)
        longer = await index.find(_request(5000))
        assert longer.overlaps == {1: 1000 // INDEX_BLOCK_TOKENS * INDEX_BLOCK_TOKENS}
        assert (await index.find(_request(5000, "salt"))).overlaps == {}
        await index.add(1, None)  # restarted
        assert (await index.find(_request(5000))).overlaps == {}

    asyncio.run(check())


def test_long_prompts_are_hashed_in_a_thread_with_the_same_result() -> None:
    async def check() -> None:
        tokens = MAX_INLINE_TOKENS + 5000
        found = await LocalIndex().find(_request(tokens))
        expected = PromptHasher().hash_prompt(None, array("I", range(tokens)))
        assert found.hashes == expected.sequences

    asyncio.run(check())
