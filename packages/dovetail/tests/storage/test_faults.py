"""Store failures are counted and logged at a limited rate."""

import asyncio
import logging
from array import array
from pathlib import Path

import pytest
from ledger_entries import turn
from prometheus_client import CollectorRegistry

from dovetail.http.collectors import StoreCollector
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.sqlite_store import SqliteLedgerStore
from dovetail.responses.redis import RedisResponseBackend
from dovetail.responses.store import ResponseStore
from dovetail.storage.faults import LOG_INTERVAL_SECONDS, StoreFaults


def _logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, object]]]:
    return [(record.getMessage(), record.__dict__["fields"]) for record in caplog.records]


def test_a_flapping_store_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    faults = StoreFaults("ledger", lambda: now)
    for _ in range(100):
        faults.record_failure(OSError("gone"))
        faults.record_success()
    now = LOG_INTERVAL_SECONDS
    faults.record_failure(OSError("gone again"))
    assert _logged(caplog) == [
        ("store_failed", {"store": "ledger", "error": "gone", "failures": 1}),
        ("store_recovered", {"store": "ledger", "failures": 1, "pending": 0, "lost": 0}),
        ("store_failed", {"store": "ledger", "error": "gone again", "failures": 101}),
    ]


def test_a_rejected_operation_does_not_mean_unavailable() -> None:
    faults = StoreFaults("ledger")
    faults.record_failure(OSError("full"), unavailable=False)
    assert (faults.failures, faults.unavailable) == (1, False)


def test_unreachable_redis_is_logged_at_startup(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> bool:
        responses = ResponseStore(RedisResponseBackend("redis://127.0.0.1:1"))
        await responses.ping()
        await responses.close()
        return responses.faults.unavailable

    assert asyncio.run(scene())
    assert [event for event, _ in _logged(caplog)] == ["store_failed"]


def test_failed_sqlite_writes_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    registry = CollectorRegistry()

    async def scene() -> None:
        store = SqliteLedgerStore(tmp_path / "turns.sqlite")
        ledger = Ledger(store)
        registry.register(StoreCollector([ledger.faults]))
        store._connection.execute("PRAGMA query_only = ON")
        await ledger.record(turn("e1"), array("i"))
        await ledger.flush()
        assert await ledger.get("t", "another") is None
        assert ledger.faults.unavailable  # a successful read does not end the failure
        await ledger.close()

    asyncio.run(scene())
    assert registry.get_sample_value("dovetail_store_lost_total", {"store": "ledger"}) == 1
    assert registry.get_sample_value("dovetail_store_failures_total", {"store": "ledger"}) == 1
    assert [event for event, _ in _logged(caplog)] == ["store_failed", "store_write_lost"]
