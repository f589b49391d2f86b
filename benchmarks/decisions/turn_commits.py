"""Measure what announcing and committing a turn adds to a response, with SQLite.

Decision 10: a turn is announced before its first event and committed before its last one. Both
together may take 0.5 ms at the median.
"""

import statistics
import tempfile
import time
from array import array
from pathlib import Path

import uvloop

from benchmarks.decisions.ledger_stores import make_entry
from benchmarks.measure import quiet
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.sqlite_store import SqliteLedgerStore
from dovetail.ledger.store import OpenTurn

TURNS = 2000


async def main() -> None:
    prompt = array("I", range(4000))
    announced, committed = [], []
    with tempfile.TemporaryDirectory(prefix="dvt") as scratch:
        ledger = Ledger(SqliteLedgerStore(Path(scratch) / "ledger.sqlite"), shared=True)
        with quiet():
            for number in range(TURNS):
                entry = make_entry(number)
                started = time.perf_counter()
                await ledger.open_turn(OpenTurn(entry.tenant, entry.id, entry.chain_before))
                opened = time.perf_counter()
                await ledger.record(entry, prompt)
                announced.append(opened - started)
                committed.append(time.perf_counter() - opened)
        await ledger.close()
    both = [first + last for first, last in zip(announced, committed, strict=True)]
    for name, times in (
        ("before the first event", announced),
        ("before the last", committed),
        ("together", both),
    ):
        median, slow = statistics.median(times), statistics.quantiles(times, n=100)[98]
        print(f"{name:>24}: {median * 1e3:.3f} ms median, {slow * 1e3:.3f} ms at p99")


if __name__ == "__main__":
    uvloop.run(main())
