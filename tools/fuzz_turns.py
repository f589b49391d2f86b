"""Fuzz exact turns: random model output, and histories that belong to other branches.

Turns: random token ids through the complete path of a request, for every available model and
every harness; each prompt is compared with its claimed exactness. Histories: edited, forked,
retried, truncated and merged from small ledgers full of duplicates; each turn must be one that is
allowed there. A failure prints how to reproduce it.
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

TURNS_EACH = 8  # per session
HISTORIES_EACH = 250  # per ledger


def random_sessions(pair_name: str, seed: int, sessions: int) -> Tally:
    """Run sessions of one model with its agents in rotation."""
    pair = next(pair for pair in PAIRS if pair.name == pair_name)
    tally = Tally()
    for number in range(seed, seed + sessions):
        agent = AGENTS[number % len(AGENTS)]
        asyncio.run(run_random_session(pair, agent, number, TURNS_EACH, tally))
    return tally


def branching_histories(seed: int) -> HistoryTally:
    """Run histories from one ledger, or with two replicas for every other seed."""
    try:
        return asyncio.run(run_histories(random.Random(seed), HISTORIES_EACH, 1 + seed % 2))
    except Exception as error:
        raise RuntimeError(f"histories of seed {seed}: {error!r}") from error


def _fuzz_turns(pool: ProcessPoolExecutor, turns: int, seed: int) -> Iterator[str]:
    pairs = [pair.name for pair in available()]
    if not pairs:
        yield "tokenizers or templates are missing: no turns were tested"
        return
    sessions = -(-turns // (TURNS_EACH * len(pairs)))
    share = [seed] * len(pairs), [sessions] * len(pairs)
    done = turns_run = missed = 0
    for name, tally in zip(pairs, pool.map(random_sessions, pairs, *share), strict=True):
        hows = ", ".join(f"{count} {how}" for how, count in sorted(tally.origins.items()))
        yield f"  {name:18}{tally.turns:6} turns: {tally.exact} exact; {hows}"
        done, turns_run, missed = done + tally.exact, turns_run + tally.turns, missed + tally.missed
    yield f"{turns_run} random turns: {done} claimed exact, all of them are"
    if missed:
        raise RuntimeError(f"{missed} turns that client and template preserved were not exact")


def _fuzz_histories(pool: ProcessPoolExecutor, histories: int, seed: int) -> Iterator[str]:
    groves = -(-histories // HISTORIES_EACH)
    tried = turns = exact = 0
    for tally in pool.map(branching_histories, range(seed, seed + groves), chunksize=4):
        tried, turns = tried + tally.histories, turns + tally.turns
        exact += tally.exact
    yield f"{tried} histories, {turns} turns in them: {exact} exact, none of another branch"


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
