"""Run crash histories: no prompt may contain reasoning of another conversation.

Processes crash at every step of a turn, and stores lag, fail, lose responses and return. Prints the
seed, and the cost in splices that were missed.
"""

import argparse
import logging
import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

TESTS = Path(__file__).parents[1] / "packages" / "dovetail" / "tests" / "support"
sys.path.insert(0, str(TESTS))

import crash_histories  # noqa: E402
from crash_histories import Result  # noqa: E402

BATCH = 250  # histories per task


def run(histories: int, seed: int, processes: int | None = None) -> Result:
    """Run histories with the seeds from `seed` on, in several processes."""
    starts = range(seed, seed + histories, BATCH)
    counts = [min(BATCH, seed + histories - start) for start in starts]
    total = Result()
    with ProcessPoolExecutor(processes or os.cpu_count(), initializer=_silence) as pool:
        for result in pool.map(crash_histories.run, counts, starts):
            total.add(result)
    return total


def _silence() -> None:
    """Store failures are part of the histories: they are not logged."""
    logging.disable(logging.CRITICAL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"{options.histories} histories from seed {seed}", flush=True)
    result = run(options.histories, seed)
    matched = result.spliced + result.missed
    print(
        f"{result.crashes} crashes, {result.turns} replayed turns: {result.spliced} spliced, "
        f"{result.missed} of {matched} matches refused "
        f"({result.missed / max(matched, 1):.1%}; {result.unverified} of them because the store "
        f"was not known to be complete), {result.wrong} wrong splices"
    )
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
