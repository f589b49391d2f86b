"""Fuzz exact turns: random model output, and histories that belong to other branches.

Turns: random token ids through the whole path of a request, for every available model and
every harness; each prompt is compared with what it claims. Histories: edited, forked, retried,
truncated and merged out of small ledgers full of duplicates; each turn is compared with what is
allowed there. A failure is printed with what reproduces it.
"""

import argparse
import asyncio
import os
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

TESTS = Path(__file__).parents[1] / "packages" / "dovetail" / "tests" / "support"
sys.path.insert(0, str(TESTS))

from agent_clients import AGENTS  # noqa: E402
from histories import HistoryTally, run_histories  # noqa: E402
from random_output import Tally, run_random_session  # noqa: E402
from real_models import PAIRS, available  # noqa: E402

TURNS_EACH = 8  # of a session
HISTORIES_EACH = 250  # out of one ledger


def random_sessions(pair_name: str, seed: int, sessions: int) -> Tally:
    """Sessions of one pair, its agents in turn."""
    pair = next(pair for pair in PAIRS if pair.name == pair_name)
    tally = Tally()
    for number in range(seed, seed + sessions):
        agent = AGENTS[number % len(AGENTS)]
        asyncio.run(run_random_session(pair, agent, number, TURNS_EACH, tally))
    return tally


def branching_histories(seed: int) -> HistoryTally:
    """Histories out of one ledger; of two replicas, for every other seed."""
    try:
        return asyncio.run(run_histories(random.Random(seed), HISTORIES_EACH, 1 + seed % 2))
    except Exception as error:
        raise RuntimeError(f"histories of seed {seed}: {error!r}") from error


def _fuzz_turns(pool: ProcessPoolExecutor, turns: int, seed: int) -> Iterator[str]:
    pairs = [pair.name for pair in available()]
    if not pairs:
        yield "no tokenizers and templates at hand: no turns were tried"
        return
    sessions = -(-turns // (TURNS_EACH * len(pairs)))
    share = [seed] * len(pairs), [sessions] * len(pairs)
    done = turns_run = missed = 0
    for name, tally in zip(pairs, pool.map(random_sessions, pairs, *share), strict=True):
        hows = ", ".join(f"{count} {how}" for how, count in sorted(tally.origins.items()))
        yield f"  {name:18}{tally.turns:6} turns: {tally.exact} exact; {hows}"
        done, turns_run, missed = done + tally.exact, turns_run + tally.turns, missed + tally.missed
    yield f"{turns_run} turns that nobody wrote: {done} claimed exact, 0 of them are not"
    if missed:
        raise RuntimeError(f"{missed} turns that client and template kept were not exact")


def _fuzz_histories(pool: ProcessPoolExecutor, histories: int, seed: int) -> Iterator[str]:
    groves = -(-histories // HISTORIES_EACH)
    tried = turns = exact = 0
    for tally in pool.map(branching_histories, range(seed, seed + groves), chunksize=4):
        tried, turns = tried + tally.histories, turns + tally.turns
        exact += tally.exact
    yield f"{tried} histories, {turns} turns in them: {exact} exact, 0 of them another branch's"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--turns", type=int, default=10_000)
    options.add_argument("--histories", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    chosen = options.parse_args()
    print(f"fuzzing {chosen.turns} turns and {chosen.histories} histories, seed {chosen.seed}")
    with ProcessPoolExecutor(chosen.processes) as pool:
        for line in _fuzz_turns(pool, chosen.turns, chosen.seed):
            print(line, flush=True)
        for line in _fuzz_histories(pool, chosen.histories, chosen.seed):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
