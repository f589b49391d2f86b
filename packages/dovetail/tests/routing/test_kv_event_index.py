"""The index of KV events: which index is used for which replica, and what is logged.

The service is a fake that contains what the tests publish; the real one runs in `make test-fleet`
(`test_kv_index.py`).
"""

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from dovetail.engines.engine import EngineRequest
from dovetail.engines.kv_cache import KvCacheInfo
from dovetail.routing import kv_checks, kv_event_index
from dovetail.routing.block_hashes import DynamoHashes, hash_dynamo_blocks
from dovetail.routing.kv_endpoints import KvEventAddress, KvEventAddresses
from dovetail.routing.kv_event_index import SALT_PREFIX, KvEventIndex
from dovetail.routing.kv_service import DynamoKvService, MissingKvExtra, create_kv_service
from dovetail_model import EngineUnavailable

BLOCK = 16
PROMPT = array("I", range(1024))
URLS = ("http://127.0.0.1:8000", "http://127.0.0.2:8000")


class FakeService:
    """A fake of Dynamo's service: `store` replaces the events of a replica."""

    def __init__(self) -> None:
        self.subscriptions: dict[int, tuple[KvEventAddress, int]] = {}
        self.stored: dict[int, set[int]] = {}
        self.log: list[str] = []
        self.error: Exception | None = None
        self.is_closed = False

    def store(self, replica: int, ids: "array[int]", salt: str | None = None) -> None:
        hashes = hash_dynamo_blocks(ids, BLOCK, cache_salt=salt)
        self.stored.setdefault(replica, set()).update(hashes.sequences)

    async def subscribe(self, replica: int, address: KvEventAddress, block_tokens: int) -> None:
        self.log.append(f"subscribe {replica}")
        self.subscriptions[replica] = address, block_tokens
        self.stored.pop(replica, None)

    async def unsubscribe(self, replica: int) -> None:
        self.subscriptions.pop(replica, None)
        self.stored.pop(replica, None)

    async def overlaps(self, hashes: DynamoHashes, tokens: int) -> Mapping[int, int]:
        if self.error is not None:
            raise self.error
        found = dict.fromkeys(self.subscriptions, 0)
        for replica in found:
            for hash in hashes.sequences:
                if hash not in self.stored.get(replica, ()):
                    break
                found[replica] += 1
        return found

    def close(self) -> None:
        self.is_closed = True


class Setup:
    """An index over replicas with these reports."""

    def __init__(self, *infos: KvCacheInfo | Exception, has_salts: bool = True) -> None:
        self.service = FakeService()
        self.infos = dict(zip(URLS, infos, strict=False))
        self.index = KvEventIndex(
            self.service, KvEventAddresses(["tcp://*:5557"]), self.fetch, has_salts=has_salts
        )

    async def fetch(self, url: str) -> KvCacheInfo:
        info = self.infos[url]
        if isinstance(info, Exception):
            raise info
        return info

    async def add_all(self) -> None:
        for replica, url in enumerate(self.infos):
            await self.index.add(replica, url)

    async def overlaps(self, ids: "array[int]", salt: str | None = None) -> Mapping[int, int]:
        found = (await self.index.find(request(ids, salt))).overlaps
        assert found is not None
        return found

    async def prefill(self, replica: int, ids: "array[int]") -> None:
        """Send a prompt to a replica and wait until its events were checked."""
        match = await self.index.find(request(ids))
        self.index.record(replica, match)
        self.index.confirm_prefill(replica, match)
        task = self.index._replicas[replica].check
        if task is not None:
            await task


def request(ids: "array[int]", salt: str | None = None) -> EngineRequest:
    return EngineRequest("r", ids, 10, cache_salt=salt)


def run(check: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await check()

    asyncio.run(main())


@pytest.fixture(autouse=True)
def publishers(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Addresses that are not reachable, with the reason. All others are."""
    unreachable: dict[str, str] = {}

    async def probe(address: str) -> str | None:
        return unreachable.get(address)

    monkeypatch.setattr(kv_event_index, "probe_publisher", probe)
    monkeypatch.setattr(kv_checks, "probe_publisher", probe)
    monkeypatch.setattr(kv_event_index, "CHECK_DELAYS_SECONDS", (0.0,))
    monkeypatch.setattr(kv_event_index, "PENDING_SECONDS", -1.0)
    monkeypatch.setattr(kv_checks, "CHECK_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(kv_checks, "RECHECK_INTERVAL_SECONDS", 0.0)
    return unreachable


@contextmanager
def logged(caplog: pytest.LogCaptureFixture, event: str) -> Iterator[list[str]]:
    """Collect the reasons of an event."""
    reasons: list[str] = []
    caplog.clear()
    with caplog.at_level(logging.INFO):
        yield reasons
    for record in caplog.records:
        if record.getMessage() == event:
            fields: dict[str, object] = record.__dict__["fields"]
            reasons.append(str(fields.get("reason", "")))


def test_overlaps_come_from_the_events_and_not_from_requests() -> None:
    async def check() -> None:
        setup = Setup(KvCacheInfo(BLOCK, 100), KvCacheInfo(BLOCK, 100))
        await setup.add_all()
        assert setup.service.subscriptions[1] == (KvEventAddress("tcp://127.0.0.2:5557"), BLOCK)
        setup.service.store(0, PROMPT)
        await setup.prefill(0, PROMPT)  # its events have arrived
        setup.service.store(1, PROMPT[:48])
        assert await setup.overlaps(PROMPT) == {0: 1024, 1: 48}
        setup.service.stored[0].clear()  # evicted, although this process sent it
        assert await setup.overlaps(PROMPT) == {1: 48}
        status = setup.index.status
        assert (status.sources, status.max_event_blocks) == ({0: "events", 1: "events"}, 200)

    run(check)


def test_prompts_count_as_cached_until_their_events_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_event_index, "PENDING_SECONDS", 60.0)

    async def check() -> None:
        setup = Setup(KvCacheInfo(BLOCK), KvCacheInfo(BLOCK))
        await setup.add_all()
        setup.service.store(0, array("I", range(5000, 5064)))
        await setup.prefill(0, array("I", range(5000, 5064)))
        match = await setup.index.find(request(PROMPT))
        setup.index.record(0, match)
        fork = PROMPT[:500] + array("I", range(9000, 9500))
        assert await setup.overlaps(fork) == {0: 496}
        assert await setup.overlaps(array("I", range(3000, 4000))) == {}

    run(check)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (KvCacheInfo(32), "blocks of 32 tokens, but the index has blocks of 16 (--kv-block-size)"),
        (KvCacheInfo(BLOCK, ranks=2), "2 data-parallel ranks"),
        (EngineUnavailable("connection refused"), "not reachable: connection refused"),
    ],
)
def test_replicas_without_usable_events_have_the_approximate_index(
    second: KvCacheInfo | Exception, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        setup = Setup(KvCacheInfo(BLOCK), second)
        with logged(caplog, "kv_events_rejected") as reasons:
            await setup.add_all()
        assert reason in reasons[0]
        assert "the approximate index is used" in reasons[0]
        assert [*setup.service.subscriptions] == [0]
        await setup.prefill(1, PROMPT)
        assert await setup.overlaps(PROMPT) == {1: 1024}
        assert setup.index.status.sources == {0: "events", 1: "requests"}
        assert setup.index.status.blocks == 4  # of 256 tokens

    run(check)


def test_replicas_of_one_host_need_addresses_of_their_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise the events of one count for all of them."""
    other = "http://127.0.0.1:8001"

    async def check() -> None:
        setup = Setup(KvCacheInfo(BLOCK))
        setup.infos[other] = KvCacheInfo(BLOCK)
        with logged(caplog, "kv_events_rejected") as reasons:
            await setup.add_all()
        assert (
            f"tcp://127.0.0.1:5557 is the address of {URLS[0]}; name the address of each replica: "
            f"--kv-events {other}=tcp://HOST:PORT"
        ) in reasons[0]
        assert [*setup.service.subscriptions] == [0]
        await setup.index.remove(0)
        await setup.index.add(1, other)  # the address is free now
        assert [*setup.service.subscriptions] == [1]

    run(check)


def test_replica_that_is_removed_while_it_is_added_is_not_subscribed() -> None:
    class SlowSetup(Setup):
        async def fetch(self, url: str) -> KvCacheInfo:
            await self.index.remove(0)
            return await super().fetch(url)

    async def check() -> None:
        setup = SlowSetup(KvCacheInfo(BLOCK))
        await setup.add_all()
        assert not setup.service.subscriptions
        assert setup.index.status.sources == {}

    run(check)


def test_unreachable_publishers_are_reported_at_once(
    caplog: pytest.LogCaptureFixture, publishers: dict[str, str]
) -> None:
    publishers["tcp://127.0.0.1:5557"] = "tcp://127.0.0.1:5557 is not reachable: refused"

    async def check() -> None:
        setup = Setup(KvCacheInfo(BLOCK))
        with logged(caplog, "kv_events_missing") as reasons:
            await setup.add_all()
        assert "is not reachable: refused; the approximate index is used" in reasons[0]
        with logged(caplog, "kv_events_missing") as reasons:
            await setup.prefill(0, PROMPT)
            assert await setup.overlaps(PROMPT) == {0: 1024}
        assert not reasons  # logged once
        setup.service.store(0, PROMPT[:512])
        with logged(caplog, "kv_events_received") as received:
            await setup.prefill(0, PROMPT[:512])  # the publisher was started
        assert received
        assert await setup.overlaps(PROMPT) == {0: 512}

    run(check)


def test_missing_events_are_reported_after_a_new_subscription(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An engine that was restarted unnoticed starts its sequence numbers again."""

    async def check() -> None:
        setup = Setup(KvCacheInfo(BLOCK))
        await setup.add_all()
        setup.service.store(0, PROMPT)
        await setup.prefill(0, PROMPT)
        with logged(caplog, "kv_events_missing") as reasons:
            await setup.prefill(0, array("I", range(2000, 2100)))
            assert setup.service.log == ["subscribe 0", "subscribe 0"]
            assert await setup.overlaps(PROMPT) == {0: 1024}  # approximate, until it is confirmed
        assert not reasons
        with logged(caplog, "kv_events_missing") as reasons:
            await setup.prefill(0, array("I", range(3000, 3100)))
        assert "sent no KV events for a prompt that was prefilled" in reasons[0]
        assert "--kv-block-size" in reasons[0]
        assert setup.index.status.event_failures == 2
        assert setup.index.status.sources == {0: "requests"}

    run(check)


def test_recovered_replicas_start_with_an_empty_cache_and_removed_ones_disappear() -> None:
    async def check() -> None:
        setup = Setup(KvCacheInfo(BLOCK), KvCacheInfo(BLOCK))
        await setup.add_all()
        for replica in (0, 1):
            setup.service.store(replica, PROMPT)
            await setup.prefill(replica, PROMPT)
        await setup.index.add(0, URLS[0])
        assert await setup.overlaps(PROMPT) == {1: 1024}
        await setup.index.remove(1)
        await setup.index.remove(7)  # unknown
        setup.index.confirm_prefill(7, await setup.index.find(request(PROMPT)))
        assert await setup.overlaps(PROMPT) == {}
        assert [*setup.service.subscriptions] == [0]
        await setup.index.stop()
        assert setup.service.is_closed

    run(check)


@pytest.mark.parametrize("has_salts", [True, False])
def test_salts(has_salts: bool) -> None:
    """Events of SGLang have no salts, so that they separate nothing in the index."""

    async def check() -> None:
        setup = Setup(KvCacheInfo(BLOCK), has_salts=has_salts)
        await setup.add_all()
        setup.service.store(0, PROMPT, "a" if has_salts else None)
        assert await setup.overlaps(PROMPT, "a") == {0: 1024}
        assert await setup.overlaps(PROMPT, "b") == ({} if has_salts else {0: 1024})
        assert setup.index.engine_salt("a") == (SALT_PREFIX + "a" if has_salts else "a")
        assert setup.index.engine_salt(None) is None

    run(check)


def test_a_failed_query_is_counted_and_the_approximate_index_decides(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def check() -> None:
        setup = Setup(KvCacheInfo(BLOCK))
        await setup.add_all()
        setup.index.record(0, await setup.index.find(request(PROMPT)))
        setup.service.error = RuntimeError("not ready")
        with logged(caplog, "kv_index_failed") as reasons:
            assert await setup.overlaps(PROMPT) == {0: 1024}
        assert reasons == ["RuntimeError: not ready"]
        assert setup.index.status.event_failures == 1

    run(check)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_nothing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", import_nothing)
    with pytest.raises(MissingKvExtra, match=r"pip install 'dovetail\[kv\]'"):
        create_kv_service()


def test_calls_of_the_service() -> None:
    """The real service has its own tests; here are the arguments that it gets."""

    class Recorder:
        def __init__(self) -> None:
            self.calls: list[tuple[str, object]] = []

        async def upsert_worker(self, worker: object) -> None:
            self.calls.append(("upsert", worker))

        async def delete_worker(self, worker: object) -> None:
            self.calls.append(("delete", worker))

        async def overlap_scores(self, query: object) -> object:
            self.calls.append(("query", query))
            return {"workers": [{"worker_id": 3, "device_blocks": 2}]}

    async def check() -> None:
        recorder = Recorder()
        service = DynamoKvService(recorder)
        assert await service.overlaps(DynamoHashes([1], [1]), 16) == {}  # no replica is subscribed
        address = KvEventAddress("tcp://a:1", "tcp://a:2")
        await service.subscribe(3, address, 16)
        await service.subscribe(3, address, 16)
        assert [name for name, _ in recorder.calls] == ["upsert", "delete", "upsert"]
        worker = recorder.calls[0][1]
        assert isinstance(worker, dict)
        assert worker["kv_events_endpoints"] == {0: "tcp://a:1"}
        assert worker["replay_endpoint"] == "tcp://a:2"
        big = (1 << 64) - 1
        assert await service.overlaps(DynamoHashes([big, 5], [big, 7]), 40) == {3: 2}
        query = recorder.calls[-1][1]
        assert isinstance(query, dict)
        assert query["block_hashes"] == [-1, 5]
        assert query["sequence_hashes"] == [-1, 7]

    run(check)
