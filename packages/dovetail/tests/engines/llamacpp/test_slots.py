"""Selection of slots, and the context length that fits into memory."""

import asyncio
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engines.llamacpp.capacity import (
    SlotPool,
    common_prefix_length,
    default_thread_count,
    fit_context_length,
    kv_bytes_per_token,
)


def ids(*values: int) -> "array[int]":
    return array("i", values)


async def use_slot(
    slots: SlotPool, session: str | None, prompt: "array[int]", generated: int = 9
) -> int:
    slot = await slots.acquire(session, prompt)
    slots.release(slot, ids(generated))
    return slot.number


def test_session_returns_to_its_slot() -> None:
    async def main() -> None:
        slots = SlotPool(3)
        one = await use_slot(slots, "one", ids(1, 2, 3))
        two = await use_slot(slots, "two", ids(1, 2, 4))
        assert one != two
        # Another beginning, as after a compaction, still belongs to the session.
        assert await use_slot(slots, "one", ids(7, 7)) == one
        assert await use_slot(slots, "two", ids(1, 2, 4, 9, 5)) == two

    asyncio.run(main())


def test_slot_of_an_ended_session_is_used_first() -> None:
    async def main() -> None:
        slots = SlotPool(2)
        one = await use_slot(slots, "one", ids(1, 2, 3))
        slot = await slots.acquire("two", ids(1, 2, 4))
        slots.release(slot, ids(9), ends_session=True)
        assert slot.number != one
        # It is the most recently used slot, but no session returns to it.
        assert await use_slot(slots, "three", ids(5, 5)) == slot.number

    asyncio.run(main())


def test_slot_is_selected_by_content_without_a_session() -> None:
    async def main() -> None:
        slots = SlotPool(2)
        first = await use_slot(slots, None, ids(1, 2, 3, 4))
        # begins alike, but is another session
        second = await use_slot(slots, None, ids(1, 8, 8, 8))
        assert first != second
        assert await use_slot(slots, None, ids(1, 2, 3, 4, 9, 6)) == first
        assert await use_slot(slots, None, ids(1, 8, 8, 8, 9, 6)) == second
        assert await use_slot(slots, None, ids(5, 5)) == first  # the least recently used one

    asyncio.run(main())


def test_session_with_a_busy_slot_gets_another() -> None:
    async def main() -> None:
        slots = SlotPool(2)
        one = await slots.acquire("s", ids(1))
        two = await slots.acquire("s", ids(1))
        assert {one.number, two.number} == {0, 1}
        assert slots.busy_count == 2

    asyncio.run(main())


def test_waiting_is_fifo_and_can_be_cancelled() -> None:
    async def main() -> None:
        slots = SlotPool(1)
        slot = await slots.acquire("a", ids(1))
        order: list[str] = []

        async def wait(name: str) -> None:
            got = await slots.acquire(name, ids(1))
            order.append(name)
            slots.release(got, ids())

        tasks = [asyncio.create_task(wait(name)) for name in "bcd"]
        await asyncio.sleep(0)
        tasks[1].cancel()
        slots.release(slot, ids())
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == ["b", "d"]
        assert slots.busy_count == 0

    asyncio.run(main())


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_common_prefix_length(one: list[int], other: list[int]) -> None:
    plain = next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    assert common_prefix_length(array("i", one), array("i", other)) == plain


LLAMA = {
    "general.architecture": "llama",
    "llama.context_length": 131072,
    "llama.block_count": 32,
    "llama.embedding_length": 4096,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
}
GB = 1 << 30


def test_bytes_per_token() -> None:
    assert kv_bytes_per_token(LLAMA) == 128 * 1024
    layers = {**LLAMA, "llama.attention.head_count_kv": [8] * 16 + [0] * 16}
    assert kv_bytes_per_token(layers) == 64 * 1024
    wide = {**LLAMA, "llama.attention.key_length": 256, "llama.attention.value_length": 256}
    assert kv_bytes_per_token(wide) == 256 * 1024
    assert kv_bytes_per_token({}) == 0


@pytest.mark.parametrize(
    ("free", "slots", "expected"),
    [
        (None, 2, 131072),
        (400 * GB, 2, 131072),
        (20 * GB, 1, 98304),
        (20 * GB, 2, 49152),
        (0, 1, 4096),
    ],
)
def test_context_length_fits_into_memory(
    tmp_path: Path, free: int | None, slots: int, expected: int
) -> None:
    model = tmp_path / "m.gguf"
    model.touch()
    assert fit_context_length(LLAMA, model, slots, free) == expected
    small = {**LLAMA, "llama.context_length": 2048}
    assert fit_context_length(small, model, slots, free) == 2048


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 3), (5, None), (64, None)])
def test_threads(cores: int, threads: int | None) -> None:
    assert default_thread_count(cores) == threads
