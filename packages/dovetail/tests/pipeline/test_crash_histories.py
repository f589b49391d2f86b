"""No turn of a prompt has reasoning of another turn, wherever processes crash or stores fail.

The long run is `tools/attack_histories.py`.
"""

import random
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import crash_histories
import pytest
import splice_costs
from history_profiles import PROFILES
from simulated_stores import StoreKind

from dovetail.ledger import candidates, redis_store, sqlite_store, unannounced
from dovetail.ledger.candidates import accept_unique
from dovetail.ledger.ledger import ChainCandidates
from dovetail.ledger.redis_lease import RedisLease
from dovetail.ledger.redis_store import RedisLedgerStore
from dovetail.ledger.sqlite_store import SqliteLedgerStore

EVERY_STORE = pytest.mark.parametrize("kind", ["sqlite", "redis"])


@EVERY_STORE
def test_no_reasoning_of_another_turn(kind: StoreKind) -> None:
    result = crash_histories.run(40, random.randrange(2**32), kind)
    assert result.failures == []


@EVERY_STORE
def test_turns_are_still_spliced(kind: StoreKind) -> None:
    result = crash_histories.run(10, 0, kind, PROFILES["rendered"])
    assert result.crashes > 5
    assert result.right > result.turns / 5


async def _do_nothing(*args: object) -> None:
    pass


def _accept(**changes: Any) -> AbstractContextManager[object]:
    """Accept matches as if the lookup had found something else."""

    def accept(found: ChainCandidates, *others: Any) -> object:
        return accept_unique(found._replace(**changes), *others)

    return patch.object(splice_costs, "accept_unique", accept)


# A broken rule, and the store and the seed of a history that shows it. If a change of the histories
# makes one of them fail, look for another seed: most rules need fewer than 150 histories.
BROKEN: dict[str, tuple[AbstractContextManager[object], StoreKind, int]] = {
    "marks are ignored": (_accept(marks=[]), "sqlite", 5),
    "gaps are ignored": (_accept(exhaustive=True), "sqlite", 80),
    "leases are ignored": (_accept(exhaustive=True), "redis", 5),
    "turns are not announced to SQLite": (
        patch.object(SqliteLedgerStore, "_open_turn", lambda store, turn: None),
        "sqlite",
        15,
    ),
    "turns are not announced to Redis": (
        patch.object(RedisLedgerStore, "_announce", _do_nothing),
        "redis",
        38,
    ),
    "interrupted turns are closed in SQLite": (
        patch.object(sqlite_store, "closes_turn", lambda entry: True),
        "sqlite",
        115,
    ),
    "interrupted turns are closed in Redis": (
        patch.object(redis_store, "closes_turn", lambda entry: True),
        "redis",
        115,
    ),
    "interrupted turns are never ambiguous": (
        patch.object(candidates, "may_begin", lambda entry, turn: False),
        "sqlite",
        115,
    ),
    "evicted turns leave no mark": (
        patch.object(sqlite_store, "hides_reasoning", lambda entry: False),
        "sqlite",
        5,
    ),
    "gaps are withdrawn before their turns are announced": (
        patch.object(unannounced.UnannouncedTurns, "__len__", lambda turns: 0),
        "sqlite",
        169,
    ),
    "gaps are not reported to Redis": (
        patch.object(RedisLease, "_report_gap", _do_nothing),
        "redis",
        5,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_histories_show_a_broken_rule(name: str) -> None:
    broken, kind, seed = BROKEN[name]
    assert crash_histories.run_history(seed, kind).wrong == 0
    with broken:
        assert crash_histories.run_history(seed, kind).wrong > 0
