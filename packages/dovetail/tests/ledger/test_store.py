"""The common behaviour of all stores, and the eviction of each."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_entries import ENTRIES, turn
from redis_cluster import RedisClusterServers
from redis_server import RedisServer

from dovetail.ledger.entry import LedgerEntry, pack_ids
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.ledger.redis_store import RedisLedgerStore
from dovetail.ledger.sqlite_store import SqliteLedgerStore
from dovetail.ledger.store import (
    MAX_LOOKUP_IDS,
    LedgerStats,
    LedgerStore,
    decode_entry,
    make_call_key,
)
from dovetail.storage.redis_client import connect

KINDS = ["memory", "sqlite", "redis", "cluster"]
AGE = 100.0


class Bench:
    """A store and its clock."""

    def __init__(self, store: LedgerStore, advance: Callable[[float], Awaitable[None]]) -> None:
        self.store = store
        self.advance = advance


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now

    async def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    started = RedisServer()
    started.start()
    yield started
    started.remove()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisClusterServers]:
    started = RedisClusterServers()
    started.start()
    yield started
    started.remove()


@pytest.fixture(params=KINDS)
def scenario(request: pytest.FixtureRequest, tmp_path: Path) -> "Scenario":
    fixture = {"redis": "server", "cluster": "cluster"}.get(request.param)
    url = request.getfixturevalue(fixture).url if fixture is not None else None
    return Scenario(request.param, tmp_path, url)


class Scenario:
    """Runs a coroutine function over a fresh store."""

    def __init__(self, kind: str, folder: Path, url: str | None = None) -> None:
        self._kind = kind
        self._folder = folder
        self._url = url
        self._number = count()

    def run(self, body: Callable[[Bench], Awaitable[None]], *, max_bytes: int = 1 << 30) -> None:
        async def main() -> None:
            async with self._open(max_bytes) as bench:
                await body(bench)

        asyncio.run(main())

    @asynccontextmanager
    async def _open(self, max_bytes: int) -> AsyncIterator[Bench]:
        clock = Clock()
        if self._url is not None:
            async with _redis(self._url) as bench:
                yield bench
            return
        store: LedgerStore = MemoryLedgerStore(max_bytes=max_bytes, max_age=AGE, clock=clock)
        if self._kind == "sqlite":
            path = self._folder / f"{next(self._number)}.db"
            store = SqliteLedgerStore(path, max_bytes=max_bytes, max_age=AGE, clock=clock)
        yield Bench(store, clock.advance)
        await store.close()


@asynccontextmanager
async def _redis(url: str) -> AsyncIterator[Bench]:
    async with connect(url, 30.0) as client:
        await client.flushall()

        async def advance(seconds: float) -> None:
            """Reduce the TTL of every key, because the clock of the server cannot be set."""
            async for key in client.scan_iter():
                left = await client.pttl(key)
                if left >= 0:
                    await client.pexpire(key, max(0, left - round(seconds * 1000)))

        store = RedisLedgerStore(url, max_age=AGE, timeout=30.0)
        yield Bench(store, advance)
        await store.close()


@pytest.mark.parametrize(
    ("id", "key"),
    [
        ("call_1", "call1"),
        ("call1", "call1"),
        ("toolu_01-Ab|x y", "toolu01Abxy"),
        ("CALL", "CALL"),
        ("é_١", ""),
        ("", ""),
    ],
)
def test_call_keys_consist_of_letters_and_digits(id: str, key: str) -> None:
    assert make_call_key(id) == key


def test_stored_entries_are_found(scenario: Scenario) -> None:
    async def body(bench: Bench) -> None:
        entry = turn("e1", generated=pack_ids(range(1000)), calls=("call_1", "call_2"))
        await bench.store.put(entry)
        assert await bench.store.get("t", "e1") == entry
        assert await bench.store.find_by_call("t", "call1") == ("e1",)
        assert await bench.store.find_by_call("t", "call2") == ("e1",)
        assert (await bench.store.find_by_chain("t", b"chain", b"before")).ids == ("e1",)

    scenario.run(body)


def test_unknown_entries_are_not_found(scenario: Scenario) -> None:
    async def body(bench: Bench) -> None:
        await bench.store.put(turn("e1", calls=("call_1", "__")))
        assert await bench.store.get("t", "e2") is None
        assert await bench.store.find_by_call("t", "call") == ()
        assert await bench.store.find_by_call("t", "CALL1") == ()
        assert await bench.store.find_by_call("t", "") == ()
        assert (await bench.store.find_by_chain("t", b"chai", b"before")).ids == ()
        await bench.store.touch("t", ["e2"])
        await bench.store.touch("t", [])
        assert await bench.store.get("t", "e2") is None

    scenario.run(body)


@pytest.mark.parametrize("other", ["", "T", "t ", "t:e1", "*", "t}:entry"])
def test_entries_are_visible_to_their_tenant_only(scenario: Scenario, other: str) -> None:
    async def body(bench: Bench) -> None:
        ours, theirs = turn("e1", calls=("c1",)), turn("e1", tenant=other, generated=pack_ids([7]))
        await bench.store.put(ours)
        assert await bench.store.get(other, "e1") is None
        assert await bench.store.find_by_call(other, "c1") == ()
        assert (await bench.store.find_by_chain(other, b"chain", b"before")).ids == ()
        await bench.store.put(theirs)
        assert await bench.store.get("t", "e1") == ours
        assert await bench.store.get(other, "e1") == theirs

    scenario.run(body)


def test_lookups_return_the_newest_first_up_to_the_limit(scenario: Scenario) -> None:
    async def body(bench: Bench) -> None:
        ids = [f"e{number}" for number in range(MAX_LOOKUP_IDS + 3)]
        for id in ids:
            await bench.store.put(turn(id, calls=("same",)))
        newest = tuple(reversed(ids))[:MAX_LOOKUP_IDS]
        assert (await bench.store.find_by_chain("t", b"chain", b"before")).ids == newest
        assert await bench.store.find_by_call("t", "same") == newest

    scenario.run(body)


def test_storing_an_entry_again_changes_nothing(scenario: Scenario) -> None:
    async def body(bench: Bench) -> None:
        for id in ("e1", "e2"):
            await bench.store.put(turn(id, calls=("c",)))
        held = await bench.store.stats()
        await bench.store.put(turn("e1", calls=("c",)))
        assert await bench.store.stats() == held
        assert held.entries == 2
        assert (await bench.store.find_by_chain("t", b"chain", b"before")).ids == ("e2", "e1")
        assert await bench.store.find_by_call("t", "c") == ("e2", "e1")

    scenario.run(body)


def test_age_counts_from_the_last_use(scenario: Scenario) -> None:
    async def body(bench: Bench) -> None:
        for id in ("used", "unused"):
            await bench.store.put(turn(id, chain=id.encode(), calls=(id,)))
        await bench.advance(AGE * 0.75)
        await bench.store.touch("t", ["used", "unknown"])
        await bench.advance(AGE * 0.75)
        assert await bench.store.get("t", "used") is not None
        assert (await bench.store.find_by_chain("t", b"used", b"before")).ids == ("used",)
        assert await bench.store.find_by_call("t", "used") == ("used",)
        assert await bench.store.get("t", "unused") is None
        found = await bench.store.find_by_chain("t", b"unused", b"before")
        assert all([await bench.store.get("t", id) is None for id in found.ids])
        assert await bench.store.find_by_call("t", "unused") == ()
        await bench.advance(AGE * 0.75)
        assert await bench.store.get("t", "used") is None

    scenario.run(body)


def test_a_child_outlives_its_parent(scenario: Scenario) -> None:
    async def body(bench: Bench) -> None:
        child = turn("child", parent="parent", prefix_tokens=5, generated=pack_ids([1, 2]))
        await bench.store.put(turn("parent"))
        await bench.advance(AGE * 0.75)
        await bench.store.put(child)
        await bench.advance(AGE * 0.75)
        assert await bench.store.get("t", "parent") is None
        assert await bench.store.get("t", "child") == child

    scenario.run(body)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(ENTRIES, max_size=5, unique_by=lambda entry: entry.id))
def test_any_entry_round_trips(scenario: Scenario, entries: list[LedgerEntry]) -> None:
    async def body(bench: Bench) -> None:
        await asyncio.gather(*map(bench.store.put, entries))
        for entry in entries:
            assert await bench.store.get(entry.tenant, entry.id) == entry
            chains = (entry.chain, entry.chain_before)
            assert entry.id in (await bench.store.find_by_chain(entry.tenant, *chains)).ids
            for call_id in entry.call_ids:
                ids = await bench.store.find_by_call(entry.tenant, make_call_key(call_id))
                assert (entry.id in ids) == bool(make_call_key(call_id))

    scenario.run(body)


def test_a_session_has_its_turns_in_order(scenario: Scenario) -> None:
    async def body(bench: Bench) -> None:
        ids = [f"e{number}" for number in range(MAX_LOOKUP_IDS + 3)]
        for number, id in enumerate(ids):
            await bench.store.put(turn(id, session="one", chain=id.encode()))
            if number % 2:
                await bench.store.put(turn(f"other{number}", session="two"))
        await bench.store.put(turn("nowhere"))
        await bench.store.put(turn(ids[0], session="one"))  # stored again
        assert await bench.store.find_by_session("t", "one") == tuple(ids)
        assert len(await bench.store.find_by_session("t", "two")) == len(ids) // 2
        assert await bench.store.find_by_session("t", "") == ()
        assert await bench.store.find_by_session("t", "three") == ()

    scenario.run(body)


def test_sessions_are_listed_per_tenant(scenario: Scenario) -> None:
    async def body(bench: Bench) -> None:
        for id, session in (("e1", "one"), ("e2", "two é\n{}"), ("e3", "two é\n{}")):
            await bench.store.put(turn(id, session=session))
            await bench.advance(1)
        await bench.store.put(turn("e4", session="one", tenant="other"))
        listed = await bench.store.list_sessions("t")
        assert [(one.session, one.turns) for one in listed] == [("two é\n{}", 2), ("one", 1)]
        assert [one.session for one in await bench.store.list_sessions("other")] == ["one"]
        assert await bench.store.find_by_session("other", "two é\n{}") == ()
        assert await bench.store.list_sessions("nobody") == ()

    scenario.run(body)


def test_a_session_is_deleted_with_its_turns(scenario: Scenario) -> None:
    async def body(bench: Bench) -> None:
        await bench.store.put(turn("e1", session="one"))
        await bench.advance(AGE * 0.75)
        await bench.store.touch("t", ["e1"])
        await bench.advance(AGE * 0.75)
        assert await bench.store.find_by_session("t", "one") == ("e1",)
        await bench.advance(AGE * 0.75)
        assert await bench.store.find_by_session("t", "one") == ()
        assert await bench.store.list_sessions("t") == ()

    scenario.run(body)


def test_turn_is_found_by_its_response(scenario: Scenario) -> None:
    async def body(bench: Bench) -> None:
        await bench.store.put(turn("e1", response_number="0a1b", calls=("call_1",)))
        assert await bench.store.find_by_call("t", "0a1b") == ("e1",)
        assert await bench.store.find_by_call("other", "0a1b") == ()

    scenario.run(body)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_an_oversized_entry_evicts_no_other(kind: str, tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.store.put(turn("small"))
        await bench.store.put(turn("large", generated=_noise(100_000)))
        assert await bench.store.get("t", "small") is not None
        assert await bench.store.get("t", "large") is None

    Scenario(kind, tmp_path).run(body, max_bytes=50_000)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_expired_entries_use_no_space(kind: str, tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        for number in range(5):
            await bench.store.put(turn(f"e{number}"))
        one = (await bench.store.stats()).bytes // 5
        await bench.advance(AGE + 1)
        await bench.store.put(turn("e9"))
        assert await bench.store.stats() == LedgerStats(1, one)

    Scenario(kind, tmp_path).run(body)


_ACTS = st.tuples(st.sampled_from(["put", "put", "touch", "wait"]), st.integers(0, 2_000))
_BOUND = 20_000


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(acts=st.lists(_ACTS, max_size=40))
def test_eviction_follows_the_last_use(
    kind: str, tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int]]
) -> None:
    scenario = Scenario(kind, tmp_path_factory.mktemp("store"))
    scenario.run(lambda bench: _check_eviction(bench, acts), max_bytes=_BOUND)


async def _check_eviction(bench: Bench, acts: list[tuple[str, int]]) -> None:
    """Compare with a model of the order of use: evicted entries are older than the others."""
    order: dict[str, float] = {}
    now = 0.0
    for number, (act, value) in enumerate(acts):
        passed = value / 50 if act == "wait" else 0.001
        now += passed
        await bench.advance(passed)
        before = await bench.store.stats()
        if act == "put":
            id = f"e{number}"
            chain = b"odd" if number % 2 else b"even"
            await bench.store.put(turn(id, chain=chain, generated=_noise(value), calls=(id,)))
            order[id] = now
        elif act == "touch" and order:
            id = list(order)[value % len(order)]
            await bench.store.touch("t", [id])
            order.pop(id)
            order[id] = now
        order = {id: used for id, used in order.items() if used >= now - AGE}
        alive = [id for id in order if await bench.store.get("t", id) is not None]
        held = await bench.store.stats()
        assert held.bytes <= _BOUND
        assert alive == list(order)[len(order) - len(alive) :]
        if len(alive) < len(order):
            # Entries are evicted only if the total with the new one exceeds the limit.
            assert act == "put"
            assert before.bytes + 4 * value + 2_000 > _BOUND
            assert held.bytes + 4 * 2_000 + 2_000 > _BOUND * 15 / 16
        order = {id: order[id] for id in alive}
        await _check_indexes(bench.store, set(alive))


async def _check_indexes(store: LedgerStore, alive: set[str]) -> None:
    found = {
        *(await store.find_by_chain("t", b"odd", b"before")).ids,
        *(await store.find_by_chain("t", b"even", b"before")).ids,
    }
    assert found <= alive
    if len(alive) <= MAX_LOOKUP_IDS:
        assert found == alive
    for id in alive:
        assert await store.find_by_call("t", id) == (id,)


def _noise(count: int) -> bytes:
    """Return ids that do not compress."""
    return pack_ids((number * 2654435761) % 2**32 for number in range(count))


def test_entries_of_older_and_newer_versions_are_read() -> None:
    """Fields are only added, at the end and with a default."""
    entry = turn("e")
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(entry))
    for known in (fields[:12], [*fields, "from the future"]):
        assert decode_entry(b"\0" + msgspec.msgpack.encode(known)) == entry


@pytest.mark.parametrize(
    "body", [b"", b"\0", b"\1", b"\0\x93\1\2\3", b"\1(\xb5/\xfd\0", b"\2abc", b"\xff" * 40]
)
def test_a_damaged_body_is_not_decoded(body: bytes) -> None:
    assert decode_entry(body) is None


def test_an_oversized_body_is_not_decoded() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 29))
    assert len(bomb) < 1 << 16
    assert decode_entry(b"\1" + bomb) is None
