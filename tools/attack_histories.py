"""Run crash histories: no turn of a prompt may have reasoning of another turn.

Processes crash at every step of a turn, and stores lag, fail, lose responses and return. Prints the
seeds, and what the rule of decision 10 costs in splices, compared with the earlier rule, which
accepts the only known candidate.
"""

import argparse
import logging
import os
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import get_args

import msgspec

TESTS = Path(__file__).parents[1] / "packages" / "dovetail" / "tests" / "support"
sys.path.insert(0, str(TESTS))

import crash_histories  # noqa: E402
from history_profiles import PROFILES  # noqa: E402
from simulated_stores import StoreKind  # noqa: E402
from splice_costs import Result  # noqa: E402

BATCH = 250  # histories per task


class Batch(msgspec.Struct, frozen=True):
    """Histories with consecutive seeds. `store`: None alternates between the stores."""

    seed: int
    count: int
    profile: str = "stress"
    store: StoreKind | None = None


def run(whole: Batch, size: int = BATCH) -> Result:
    """Run histories in several processes."""
    total = Result()
    with ProcessPoolExecutor(os.cpu_count(), initializer=_silence) as pool:
        for result in pool.map(_run_batch, _split(whole, size)):
            total.add(result)
    return total


def _silence() -> None:
    """Store failures are part of the histories: they are not logged."""
    logging.disable(logging.CRITICAL)


def _split(whole: Batch, size: int) -> Iterator[Batch]:
    end = whole.seed + whole.count
    for seed in range(whole.seed, end, size):
        yield msgspec.structs.replace(whole, seed=seed, count=min(size, end - seed))


def _run_batch(batch: Batch) -> Result:
    return crash_histories.run(batch.count, batch.seed, batch.store, PROFILES[batch.profile])


def _run_with_log(whole: Batch, log: Path) -> Result:
    """Run in this process and append the result of each batch to a log.

    Batches that are in the log already are not run again.
    """
    done: dict[Batch, Result] = {}
    if log.exists():
        for line in log.read_bytes().splitlines():
            batch, result = msgspec.json.decode(line, type=tuple[Batch, Result])
            done[batch] = result
    total = Result()
    for batch in _split(whole, BATCH):
        if batch not in done:
            done[batch] = _run_batch(batch)
            with log.open("ab") as file:
                file.write(msgspec.json.encode((batch, done[batch])) + b"\n")
        total.add(done[batch])
    return total


def _describe(result: Result) -> str:
    causes = [
        f"  {count} ({count / max(result.earlier_right, 1):.2%}): {cause}"
        for cause, count in sorted(result.missed.items(), key=lambda item: -item[1])
    ]
    return "\n".join(
        [
            f"{result.histories} histories with {result.crashes} crashes",
            f"{result.turns} replayed turns without reasoning",
            f"earlier rule: {result.earlier_right} right and {result.earlier_wrong} wrong splices",
            f"this rule: {result.right} right and {result.wrong} wrong splices",
            f"other branches of named sessions: {result.other_branch}",
            f"missed: {result.missed_share:.2%} of the right splices of the earlier rule",
            *causes,
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--profile", choices=PROFILES, default="stress")
    parser.add_argument("--store", choices=get_args(StoreKind), default=None)
    parser.add_argument("--log", type=Path, help="run in one process, and continue after a stop")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"{options.histories} histories from seed {seed}", flush=True)
    _silence()
    batch = Batch(seed, options.histories, options.profile, options.store)
    result = _run_with_log(batch, options.log) if options.log else run(batch)
    print(_describe(result))
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
