"""Subagents run while the place of the session that waits for them is held."""

import asyncio
from array import array
from math import inf

import pytest
from fake_clock_loop import run_jumping

from dovetail.engines.engine import EngineRequest
from dovetail.routing.session_admission import SessionAdmission, SessionTurn
from dovetail.routing.session_scheduler import SessionScheduler
from dovetail.routing.session_turns import (
    SchedulingLimits,
    Turn,
    TurnArrival,
    TurnEnd,
    TurnProfile,
)

TASK = (("Task", ""),)
LIMITS = SchedulingLimits(
    prefill_tokens_per_second=100.0, hold_factor=1e3, headroom=0.0, rotation_factor=1e6
)


def scheduler(**tokens: int) -> SessionScheduler:
    """Return a scheduler with 1,000 tokens, and sessions with places that are held."""
    one = SessionScheduler(1_000, LIMITS)
    for session, size in tokens.items():
        one.finish(one.arrive(TurnArrival(session, size), 0.0), TurnEnd(size, TASK), 1.0)
    return one


def places(one: SessionScheduler) -> dict[str, int]:
    return {state.session: state.tokens for state in one.sessions(2.0)}


def begin_subagent(one: SessionScheduler, tokens: int, *relatives: str) -> Turn:
    return one.arrive(TurnArrival("subagent", tokens, relatives=relatives), 2.0)


def test_subagent_takes_what_it_needs_of_the_place_of_its_caller() -> None:
    one = scheduler(caller=500, other=400)
    assert begin_subagent(one, 300, "caller").state == "running"
    assert places(one) == {"caller": 300, "other": 400, "subagent": 300}


def test_subagent_prefers_places_that_are_not_held() -> None:
    one = scheduler(caller=500)
    one.finish(one.arrive(TurnArrival("idle", 400), 0.0), TurnEnd(400, waits_for_user=True), 1.0)
    assert begin_subagent(one, 300, "caller").state == "running"
    assert places(one) == {"caller": 500, "subagent": 300}


def test_large_subagent_takes_the_whole_place() -> None:
    one = scheduler(caller=500, other=400)
    assert begin_subagent(one, 600, "caller").state == "running"
    assert places(one) == {"other": 400, "subagent": 600}


def test_other_sessions_keep_their_places() -> None:
    one = scheduler(caller=500, other=400)
    assert begin_subagent(one, 601, "caller").state == "waiting"
    assert begin_subagent(one, 300, "other-caller").state == "waiting"
    assert places(one) == {"caller": 500, "other": 400, "subagent": 0}


def test_waiting_subagents_are_considered_behind_others_without_room() -> None:
    one = scheduler(caller=500, other=400)
    assert one.arrive(TurnArrival("waiting", 250), 1.5).state == "waiting"
    turn = begin_subagent(one, 300, "caller")
    assert one.admit(2.0) == [turn]


def test_caller_continues_with_the_rest_of_its_place() -> None:
    one = scheduler(caller=500, other=400)
    turn = begin_subagent(one, 300, "caller")
    one.finish(turn, TurnEnd(300, waits_for_user=True), 3.0)
    assert one.arrive(TurnArrival("caller", 550), 4.0).state == "running"
    assert places(one) == {"caller": 550, "other": 400}


def test_relative_that_ran_after_the_subagent_began_does_not_wait_for_it() -> None:
    one = scheduler(caller=500)
    peer = one.arrive(TurnArrival("peer", 300), 1.5)
    turn = begin_subagent(one, 200, "caller", "peer")
    one.finish(peer, TurnEnd(300, TASK), 3.0)
    one.finish(turn, TurnEnd(200, TASK), 3.0)
    one.finish(one.arrive(TurnArrival("caller", 500), 4.0), TurnEnd(500, TASK), 5.0)
    grown = one.arrive(TurnArrival("subagent", 600, relatives=("caller", "peer")), 6.0)
    assert grown.state == "waiting"
    assert places(one) == {"caller": 500, "peer": 300, "subagent": 200}


@pytest.mark.parametrize(
    "profile",
    [
        TurnProfile("s", "s#1", "", "head"),
        TurnProfile("other", "other#0", "", "head", parent="s"),
    ],
)
def test_conversations_of_the_session_and_of_its_parent_are_relatives(profile: TurnProfile) -> None:
    async def enter(turn: SessionTurn, tokens: int) -> bool:
        request = EngineRequest("r", array("I", [1] * tokens), 100, expected_tokens=0)
        return await asyncio.wait_for(turn.enter(0, request), 1.0)

    async def scene() -> None:
        sessions = SessionAdmission(1_000, LIMITS)
        sessions.add_replica(0, "engine", None)
        caller = sessions.begin_turn(TurnProfile("s", "s#0", "", "other head"))
        assert await enter(caller, 900)
        caller.finish(TurnEnd(900, TASK))
        with pytest.raises(TimeoutError):
            await enter(sessions.begin_turn(TurnProfile("stranger", "stranger#0", "", "h")), 300)
        assert await enter(sessions.begin_turn(profile), 300)
        sessions.stop()

    run_jumping(scene())


def test_callers_that_were_deleted_are_ignored() -> None:
    one = scheduler(caller=500, other=400)
    turn = begin_subagent(one, 700, "caller")
    one.release("caller", 2.5)
    assert one.admit(2.5) == []
    assert one.next_deadline(2.5) not in (None, inf)
    one.release("other", 3.0)
    assert one.admit(3.0) == [turn]
