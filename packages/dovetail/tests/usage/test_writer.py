"""The writer: batches, retries while the store is unavailable, and losses."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence

import pytest
from websocket_fixture import until

from dovetail.storage.faults import StoreError, StoreFaults
from dovetail.telemetry.record import RequestRecord
from dovetail.usage import writer as writer_module
from dovetail.usage.counts import UsageKey
from dovetail.usage.store import Spent, SpentKey, UsageBatch, UsageQuery, UsageRow
from dovetail.usage.writer import UsageWriter
from dovetail_model import Usage

KEY = UsageKey("team", "k", "m", "s", "pi")
RECORD = RequestRecord(
    id="r", endpoint="messages", status=200, duration=0.5, usage=Usage(10, 2), reprefilled=3
)


class RecordingStore:
    """Keeps the batches. It fails as often as a test wants, to stand for an unreachable Redis."""

    def __init__(self, failures: int = 0) -> None:
        self.faults = StoreFaults("usage")
        self.batches: list[UsageBatch] = []
        self.failures = failures
        self.heartbeats: list[str | None] = []
        self.closed = False

    async def apply(self, batch: UsageBatch) -> None:
        await asyncio.sleep(0)
        self.batches.append(batch)
        if self.failures:
            self.failures -= 1
            self.faults.record_failure()
            raise StoreError("unavailable")
        self.faults.record_success()

    async def maintain(self, process: str | None) -> None:
        self.heartbeats.append(process)

    async def read(self, query: UsageQuery) -> list[UsageRow]:
        return []

    async def read_spent(self, keys: Sequence[SpentKey]) -> list[Spent]:
        return [Spent() for _ in keys]

    async def close(self) -> None:
        self.closed = True


class RejectingStore(RecordingStore):
    """Cannot store its first batch, such as one with a number that is too large."""

    async def apply(self, batch: UsageBatch) -> None:
        if batch.number == 1:
            raise OverflowError("too large")
        await super().apply(batch)


def test_batch_that_cannot_be_stored_is_counted_as_lost() -> None:
    async def scene() -> None:
        store = RejectingStore()
        writer = UsageWriter(store)
        writer.finish(writer.begin(KEY), RECORD)
        await writer.flush()
        assert (writer._applied, store.faults.lost) == (1, 1)  # `flush` did not time out
        writer.finish(writer.begin(KEY), RECORD)
        await writer.close()
        assert ([one.number for one in store.batches], store.faults.lost) == ([2], 1)

    asyncio.run(scene())


def test_short_request_is_written_once() -> None:
    async def scene() -> None:
        store = RecordingStore()
        writer = UsageWriter(store)
        for _ in range(3):
            writer.finish(writer.begin(KEY), RECORD)
        running = writer.begin(KEY)
        await writer.flush()
        [batch] = store.batches
        assert [one.announced for one in batch.finished] == [False] * 3
        assert len(batch.opened) == 1
        writer.finish(running, RECORD)
        await writer.close()
        [end] = store.batches[1].finished
        assert (end.announced, end.request) == (True, batch.opened[0])
        assert (end.counts.requests, end.counts.prompt_tokens) == (1, 10)
        assert (end.counts.microseconds, end.counts.reprefilled_tokens) == (500_000, 3)
        assert store.closed

    asyncio.run(scene())


def test_failed_batch_is_sent_again_and_nothing_waits_for_it() -> None:
    async def scene() -> None:
        store = RecordingStore(failures=2)
        writer = UsageWriter(store)
        writer.finish(writer.begin(KEY), RECORD)
        await writer.flush()  # returns though the store failed
        assert store.faults.pending == 1
        writer.finish(writer.begin(KEY), RECORD)
        await writer.flush()
        await until(lambda: len(store.batches) == 4)
        await writer.close()
        assert [batch.number for batch in store.batches] == [1, 1, 1, 2]
        assert store.batches[0] == store.batches[2]
        assert (store.faults.lost, store.faults.pending) == (0, 0)

    _without_waits(scene)


def test_losses_are_counted() -> None:
    async def scene() -> None:
        store = RecordingStore(failures=10**6)
        writer = UsageWriter(store)
        for _ in range(3):
            writer.finish(writer.begin(KEY), RECORD)
        await writer.close()
        assert store.faults.lost == 3

    _without_waits(scene)


def test_heartbeats_only_while_requests_run() -> None:
    async def scene() -> None:
        store = RecordingStore()
        writer = UsageWriter(store)
        writer.start()
        await asyncio.sleep(0)
        number = writer.begin(KEY)
        await until(lambda: len(store.heartbeats) >= 3)
        writer.finish(number, RECORD)
        await writer.close()
        assert store.heartbeats[0] is None
        assert store.heartbeats[2] is not None

    _without_waits(scene)


def _without_waits(scene: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run a scene in which retries and heartbeats follow at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "RETRY_SECONDS", 0.0)
        patch.setattr(writer_module, "HEARTBEAT_SECONDS", 0.0)
        asyncio.run(scene())
