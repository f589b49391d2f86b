"""The ledger and its cache: lookups without the store, rebuilt token ids, store failures."""

import asyncio
import random
from array import array
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_entries import turn

from dovetail.ledger.cache import SharedTokenIds
from dovetail.ledger.entry import LedgerEntry, create_entry_id, pack_ids, unpack_ids
from dovetail.ledger.ledger import RENEW_INTERVAL_SECONDS, Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.ledger.sqlite_store import SqliteLedgerStore
from dovetail.ledger.store import DAY_SECONDS, MAX_AGE_SECONDS, MAX_LOOKUP_IDS, ChainLookup
from dovetail.storage.faults import StoreError

PROMPT = array("I", [1, 2, 3])


class RecordingStore(MemoryLedgerStore):
    """A store that records its calls, and fails or waits on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.touched = 0
        self.broken = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def get(self, tenant: str, id: str) -> LedgerEntry | None:
        self._record_call("get")
        return await super().get(tenant, id)

    async def find_by_call(self, tenant: str, call_key: str) -> tuple[str, ...]:
        self._record_call("by_call")
        return await super().find_by_call(tenant, call_key)

    async def find_by_chain(self, tenant: str, chain: bytes, chain_before: bytes) -> ChainLookup:
        self._record_call("by_chain")
        return await super().find_by_chain(tenant, chain, chain_before)

    async def put(self, entry: LedgerEntry) -> None:
        await self.gate.wait()
        self._record_call("put")
        await super().put(entry)

    async def touch(self, tenant: str, ids: Iterable[str]) -> None:
        named = list(ids)
        self.touched += len(named)
        await super().touch(tenant, named)

    def _record_call(self, operation: str) -> None:
        self.calls.append(operation)
        if self.broken:
            raise StoreError("the disk is on fire")


async def _find_by_chain(ledger: Ledger, tenant: str, chain: bytes) -> list[LedgerEntry]:
    return (await ledger.find_by_chain(tenant, chain, b"before")).entries


async def _load_ids(ledger: Ledger, entry: LedgerEntry) -> "array[int] | None":
    token_ids = await ledger.load_token_ids(entry)
    return None if token_ids is None else token_ids[:]


def _whole(parent: "array[int]", entry: LedgerEntry) -> "array[int]":
    """Compute the token ids of an entry by definition."""
    return parent[: entry.prefix_tokens] + unpack_ids(entry.suffix) + unpack_ids(entry.generated)


def _line(length: int, *, seed: int = 0) -> tuple[list[LedgerEntry], list["array[int]"]]:
    """Build a session in which each turn extends the previous one or a prefix of it."""
    chance = random.Random(seed)
    entries: list[LedgerEntry] = []
    wholes = [array("I")]
    for number in range(length):
        dropped = chance.choice([0, 0, 0, 2, len(wholes[-1])])
        entry = turn(
            f"e{number}",
            parent=f"e{number - 1}" if number else None,
            prefix_tokens=max(0, len(wholes[-1]) - dropped) if number else 0,
            suffix=pack_ids(chance.randrange(1000) for _ in range(chance.randrange(6))),
            generated=pack_ids(chance.randrange(1000) for _ in range(chance.randrange(6))),
            chain=f"chain{number}".encode(),
            calls=(f"call_{number}",),
        )
        entries.append(entry)
        wholes.append(_whole(wholes[-1], entry))
    return entries, wholes[1:]


async def _record(ledger: Ledger, entry: LedgerEntry, whole: "array[int]") -> None:
    generated = len(unpack_ids(entry.generated))
    await ledger.record(entry, whole[: len(whole) - generated])


def test_recorded_turns_are_found_without_the_store() -> None:
    async def main() -> None:
        store = RecordingStore()
        ledger = Ledger(store)
        entry = turn("e1", generated=pack_ids([4, 5]), calls=("call_1",))
        await ledger.record(entry, PROMPT)
        await ledger.flush()
        store.calls.clear()
        assert ledger.get_cached("t", "e1") is entry
        assert await ledger.get("t", "e1") is entry
        assert await ledger.find_by_call("t", "call1") == [entry]
        assert await _load_ids(ledger, entry) == array("I", [1, 2, 3, 4, 5])
        assert store.calls == []
        assert await _find_by_chain(ledger, "t", b"chain") == [entry]
        assert store.calls == ["by_chain"]  # only the store knows whether there are others
        await ledger.close()

    asyncio.run(main())


def test_released_session_has_no_cached_token_ids_but_its_turns() -> None:
    async def main() -> None:
        ledger = Ledger(MemoryLedgerStore())
        entries = [turn(name, generated=pack_ids([4]), session=name) for name in ("one", "two")]
        for entry in entries:
            await ledger.record(entry, PROMPT)
        ledger.release_session("t", "one")
        ledger.release_session("t", "unknown")
        cached = [ledger._token_cache.get("t", entry.id) is not None for entry in entries]
        assert cached == [False, True]
        assert await ledger.get("t", "one") == entries[0]
        await ledger.close()

    asyncio.run(main())


def test_recording_does_not_modify_the_prompt_of_the_caller() -> None:
    async def main() -> None:
        ledger = Ledger(MemoryLedgerStore())
        prompt = array("I", [1, 2, 3])
        entry = turn("e1", generated=pack_ids([4]))
        await ledger.record(entry, prompt)
        prompt.append(9)
        assert await _load_ids(ledger, entry) == array("I", [1, 2, 3, 4])
        await ledger.close()

    asyncio.run(main())


def test_recording_does_not_wait_forever_and_pending_turns_are_found() -> None:
    async def main() -> None:
        store = RecordingStore()
        store.gate.clear()
        ledger = Ledger(store)
        ledger.write_timeout_seconds = 0.01
        entry = turn("e1", calls=("c1",))
        await ledger.record(entry, PROMPT)
        assert ledger.faults.late == 1
        assert await _find_by_chain(ledger, "t", b"chain") == [entry]
        assert await ledger.find_by_call("t", "c1") == [entry]
        store.gate.set()
        await ledger.flush()
        assert await MemoryLedgerStore.get(store, "t", "e1") == entry
        await ledger.close()

    asyncio.run(main())


def test_only_a_store_that_does_not_respond_shortens_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that is slow because the machine is busy stores the next turns in time."""
    monkeypatch.setattr("dovetail.ledger.ledger.REWRITE_TIMEOUT_SECONDS", 0.01)

    async def main() -> None:
        store = RecordingStore()
        ledger = Ledger(store)
        ledger.write_timeout_seconds = 0.02
        store.gate.clear()
        await ledger.record(turn("e1"), PROMPT)
        ledger.write_timeout_seconds = 20.0
        await ledger.record(turn("e2"), PROMPT)  # does not wait long
        assert ledger.faults.late == 2
        store.gate.set()
        await ledger.flush()
        store.gate.clear()
        recording = asyncio.create_task(ledger.record(turn("e3"), PROMPT))
        await asyncio.sleep(0.1)
        assert not recording.done()
        store.gate.set()
        await recording
        assert ledger.faults.late == 2
        await ledger.close()

    asyncio.run(main())


def test_entries_larger_than_the_cache_are_found_before_and_after_writing() -> None:
    async def main() -> None:
        store = RecordingStore()
        store.gate.clear()
        ledger = Ledger(store, cache_bytes=5_000, token_cache_bytes=0)
        entry = turn("e1", generated=pack_ids(range(2000)))
        waiting = asyncio.create_task(ledger.record(entry, array("I")))
        await asyncio.sleep(0)
        assert ledger.get_cached("t", "e1") is entry
        store.gate.set()
        await waiting
        await ledger.flush()
        assert await ledger.get("t", "e1") == entry
        await ledger.close()

    asyncio.run(main())


def test_a_slow_store_makes_the_caller_wait() -> None:
    async def main() -> None:
        store = RecordingStore()
        store.gate.clear()
        ledger = Ledger(store, cache_bytes=10_000)
        ledger.write_timeout_seconds = 0.0
        recording = [
            asyncio.create_task(ledger.record(turn(f"e{n}", chain=b"%d" % n), PROMPT))
            for n in range(20)
        ]
        while sum(task.done() for task in recording) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert sum(task.done() for task in recording) < 15
        store.gate.set()
        await asyncio.gather(*recording)
        await ledger.flush()
        assert (await store.stats()).entries == 20
        await ledger.close()

    asyncio.run(main())


@pytest.mark.parametrize("shared", [False, True])
def test_lookup_by_chain_returns_every_match(shared: bool) -> None:
    """A lookup by chain also returns entries that an earlier process recorded."""

    async def main() -> None:
        store = RecordingStore()
        await store.put(turn("earlier", generated=pack_ids([7])))
        ledger = Ledger(store, shared=shared)
        await ledger.record(turn("ours", generated=pack_ids([8])), PROMPT)
        for _ in range(2):
            found = await _find_by_chain(ledger, "t", b"chain")
            assert [entry.id for entry in found] == ["ours", "earlier"]
            await ledger.flush()
        store.calls.clear()
        await _find_by_chain(ledger, "t", b"chain")
        assert store.calls == ["by_chain"]
        await ledger.record(turn("third"), PROMPT)
        found = await _find_by_chain(ledger, "t", b"chain")
        assert [entry.id for entry in found] == ["third", "ours", "earlier"]
        await ledger.close()

    asyncio.run(main())


def test_turns_of_other_processes_are_found_in_a_shared_store() -> None:
    async def main() -> None:
        store = MemoryLedgerStore()
        ledger = Ledger(store, shared=True)
        await ledger.record(turn("ours"), PROMPT)
        await ledger.flush()
        await store.put(turn("theirs"))
        found = await _find_by_chain(ledger, "t", b"chain")
        assert [entry.id for entry in found] == ["theirs", "ours"]
        await ledger.close()

    asyncio.run(main())


def test_lookup_by_chain_is_limited() -> None:
    async def main() -> None:
        ledger = Ledger(RecordingStore())
        for number in range(MAX_LOOKUP_IDS + 5):
            await ledger.record(turn(f"e{number}"), PROMPT)
            found = await _find_by_chain(ledger, "t", b"chain")
            newest = [f"e{n}" for n in range(number, -1, -1)][:MAX_LOOKUP_IDS]
            assert [entry.id for entry in found] == newest
        await ledger.close()

    asyncio.run(main())


def test_tenants_are_isolated() -> None:
    async def main() -> None:
        ledger = Ledger(MemoryLedgerStore())
        ours = turn("e1", calls=("c1",), generated=pack_ids([4]))
        theirs = turn("e1", tenant="u", generated=pack_ids([5]))
        await ledger.record(ours, PROMPT)
        assert ledger.get_cached("u", "e1") is None
        assert await ledger.get("u", "e1") is None
        assert await ledger.find_by_call("u", "c1") == []
        assert await _find_by_chain(ledger, "u", b"chain") == []
        assert await ledger.load_ancestors("u", "e1") == []
        await ledger.record(theirs, PROMPT)
        assert await _load_ids(ledger, ours) == array("I", [1, 2, 3, 4])
        assert await _load_ids(ledger, theirs) == array("I", [1, 2, 3, 5])
        child = turn("e2", tenant="v", parent="e1", prefix_tokens=3)
        assert await ledger.load_token_ids(child) is None
        await ledger.close()

    asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    length=st.integers(1, 30),
    cache=st.sampled_from([0, 3_000, 1 << 20]),
    wholes=st.sampled_from([0, 1_000, 1 << 20]),
)
def test_token_ids_equal_their_definition(seed: int, length: int, cache: int, wholes: int) -> None:
    """Lookups in any order, with any part in memory, with one store and two ledgers."""

    async def main() -> None:
        entries, expected = _line(length, seed=seed)
        store = MemoryLedgerStore()
        first = Ledger(store, cache_bytes=cache, token_cache_bytes=wholes)
        for entry, whole in zip(entries, expected, strict=True):
            await _record(first, entry, whole)
        await first.flush()
        second = Ledger(store, cache_bytes=cache, token_cache_bytes=wholes)
        order = list(range(length))
        random.Random(seed).shuffle(order)
        for at in [*order, *order]:
            for ledger in (first, second):
                assert await _load_ids(ledger, entries[at]) == expected[at]
        assert await second.load_ancestors("t", entries[-1].id) == entries

    asyncio.run(main())


def test_token_ids_of_a_very_long_session_are_rebuilt() -> None:
    async def main() -> None:
        entries, expected = _line(5_000)
        store = MemoryLedgerStore()
        for entry in entries:
            await store.put(entry)
        ledger = Ledger(store)
        assert await _load_ids(ledger, entries[-1]) == expected[-1]
        assert await ledger.load_ancestors("t", entries[-1].id) == entries

    asyncio.run(main())


def test_a_missing_ancestor_makes_token_ids_unknown() -> None:
    async def main() -> None:
        entries, _ = _line(5)
        store = MemoryLedgerStore()
        for entry in entries[1:2] + entries[3:]:
            await store.put(entry)
        ledger = Ledger(store)
        for entry in entries[1:2] + entries[3:]:
            assert await ledger.get("t", entry.id) == entry
            assert await ledger.load_token_ids(entry) is None
        assert await ledger.load_ancestors("t", "e4") == entries[3:]
        assert await ledger.load_ancestors("t", "e2") == []

    asyncio.run(main())


@pytest.mark.parametrize(
    "damaged",
    [
        [turn("a", parent="a")],
        [turn("a", parent="b"), turn("b", parent="a")],
        [turn("a", parent="b", prefix_tokens=5), turn("b", suffix=pack_ids([1]))],
    ],
    ids=["own parent", "ring", "keeps more than there is"],
)
def test_a_damaged_branch_has_no_token_ids(damaged: list[LedgerEntry]) -> None:
    async def main() -> None:
        store = MemoryLedgerStore()
        for entry in damaged:
            await store.put(entry)
        ledger = Ledger(store)
        assert await ledger.load_token_ids(damaged[0]) is None
        assert len(await ledger.load_ancestors("t", "a")) == len(damaged)

    asyncio.run(main())


def test_a_failing_store_makes_turns_unknown(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = RecordingStore()
        await store.put(turn("stored"))
        ledger = Ledger(store)
        store.broken = True
        assert await ledger.get("t", "stored") is None
        assert await ledger.find_by_call("t", "c1") == []
        assert await _find_by_chain(ledger, "t", b"chain") == []
        ours = turn("ours", calls=("c1",))
        await ledger.record(ours, PROMPT)
        await ledger.flush()
        assert ledger.faults.lost == 1
        assert await ledger.find_by_call("t", "c1") == [ours]
        assert await _find_by_chain(ledger, "t", b"chain") == [ours]
        store.broken = False
        found = await _find_by_chain(ledger, "t", b"chain")
        assert [entry.id for entry in found] == ["ours", "stored"]
        await ledger.close()

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == ["store_write_lost"]


def test_active_session_does_not_expire() -> None:
    """Thirty days with a turn every two hours: no turn expires, and few are touched each time."""

    async def main() -> None:
        now = 0.0
        store = RecordingStore()
        store._clock = lambda: now
        ledger = Ledger(store, cache_bytes=0, token_cache_bytes=0, clock=lambda: now)
        entries, expected = _line(360)
        for number, (entry, whole) in enumerate(zip(entries, expected, strict=True)):
            now = number * 2 * 3600.0
            await _record(ledger, entry, whole)
            await ledger.flush()
        assert now > 4 * MAX_AGE_SECONDS - DAY_SECONDS
        assert await _load_ids(ledger, entries[-1]) == expected[-1]

    asyncio.run(main())


def test_an_active_session_is_touched_once_per_interval() -> None:
    async def main() -> None:
        now = 0.0
        store = RecordingStore()
        ledger = Ledger(store, clock=lambda: now)
        entries, expected = _line(500)
        for number, (entry, whole) in enumerate(zip(entries, expected, strict=True)):
            now = number * RENEW_INTERVAL_SECONDS / 100
            await _record(ledger, entry, whole)
            await ledger.flush()
        assert store.touched < 3 * len(entries)

    asyncio.run(main())


def test_all_turns_are_found_after_a_restart(tmp_path: Path) -> None:
    entries, expected = _line(50)

    async def write() -> None:
        ledger = Ledger(SqliteLedgerStore(tmp_path / "ledger.db"))
        for entry, whole in zip(entries, expected, strict=True):
            await _record(ledger, entry, whole)
        await ledger.close()

    async def read() -> None:
        ledger = Ledger(SqliteLedgerStore(tmp_path / "ledger.db"))
        (last,) = await ledger.find_by_call("t", "call49")
        assert await _find_by_chain(ledger, "t", b"chain49") == [last]
        assert await _load_ids(ledger, last) == expected[-1]
        assert (await ledger.stats()).entries == 50
        await ledger.close()

    asyncio.run(write())
    asyncio.run(read())


def test_entry_ids_do_not_start_with_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter([b"\xf8" * 12, b"\xfb" * 12, b"\x00" * 12])  # the first two are "-" in base64
    monkeypatch.setattr("dovetail.ledger.entry.new_id_number", lambda: next(made))
    assert create_entry_id() == "A" * 16


def test_one_prompt_extends_shared_token_ids_in_place() -> None:
    array_ = array("I", [1, 2, 3])
    shared = SharedTokenIds(array_)
    first, second = shared.take(), shared.take()
    assert first is array_
    assert second is not array_
    first.append(8)
    second.append(9)
    assert (first.tolist(), second.tolist()) == ([1, 2, 3, 8], [1, 2, 3, 9])
    assert (len(shared), list(shared)) == (3, [1, 2, 3])  # as before
    assert (shared[:].tolist(), shared[1:9].tolist(), shared[-2:].tolist()) == (
        [1, 2, 3],
        [2, 3],
        [2, 3],
    )
    assert shared.take().tolist() == [1, 2, 3]
