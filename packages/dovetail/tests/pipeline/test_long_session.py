"""Two hundred turns: all are exact, and the cost per turn is constant."""

import asyncio
from collections.abc import Callable
from functools import cache

import pytest
from exactness_matrix import OFF
from long_session import LOOP, Cost, run_long_session
from real_models import PAIRS, Pair, require

TURNS = 200
KEEPS = [pair for pair in PAIRS if pair.name in ("Ministral-3", "GLM-4.7")]
DROPS = [pair for pair in PAIRS if pair.name == "Qwen3"]


@cache
def session(pair: Pair) -> list[Cost]:
    require(pair)
    return asyncio.run(run_long_session(pair, TURNS))


@pytest.mark.parametrize("pair", KEEPS, ids=lambda pair: pair.name)
def test_every_turn_is_exact_to_the_end(pair: Pair) -> None:
    costs = session(pair)
    assert [at for at, cost in enumerate(costs) if not cost.exact] == []
    assert {cost.origin for cost in costs[1:]} == {"grown"}
    assert costs[-1].prompt > 100_000


@pytest.mark.long
@pytest.mark.parametrize("pair", DROPS, ids=lambda pair: pair.name)
def test_only_user_turns_are_inexact_if_the_policy_drops_reasoning(pair: Pair) -> None:
    costs = session(pair)
    inexact = [at for at, cost in enumerate(costs) if not cost.exact]
    assert inexact == list(range(LOOP, TURNS, LOOP))
    assert {costs[at].origin for at in inexact} == {"resumed"}


@pytest.mark.parametrize("pair", KEEPS + DROPS, ids=lambda pair: pair.name)
@pytest.mark.parametrize("work", ["encoded", "rendered", "stored", "prefilled"])
def test_the_work_of_a_turn_does_not_grow_with_the_session(pair: Pair, work: str) -> None:
    costs = session(pair)
    done: Callable[[int], int] = lambda at: int(getattr(costs[at], work))  # noqa: E731
    for at in range(TURNS - LOOP, TURNS):  # numbers have more digits now, hence the margin
        assert done(at) <= 1.2 * done(LOOP + at % LOOP) + 16, at


@pytest.mark.parametrize("pair", KEEPS[:1], ids=lambda pair: pair.name)
def test_stored_bytes_do_not_grow_if_client_copies_are_replayed(pair: Pair) -> None:
    require(pair)
    stored = [cost.stored for cost in asyncio.run(run_long_session(pair, 40, OFF))]
    assert max(stored[-LOOP:]) <= 1.2 * max(stored[LOOP : 2 * LOOP])


@pytest.mark.long
@pytest.mark.parametrize("pair", KEEPS[:1], ids=lambda pair: pair.name)
def test_memory_grows_linearly(pair: Pair) -> None:
    require(pair)
    costs = asyncio.run(run_long_session(pair, 70, memory=True))
    used = [cost.memory for cost in costs]
    early, late = used[29] - used[9], used[69] - used[49]
    assert late < 1.5 * early
    assert late / 20 < 100 << 10  # bytes per turn, including the history of the client
