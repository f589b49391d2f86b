"""A turn that fails or is cancelled while other turns of its conversation wait or run."""

import asyncio
from array import array
from unittest.mock import Mock

import pytest
from fake_clock_loop import run_jumping

from dovetail.engines.engine import EngineRequest
from dovetail.routing.session_admission import MAX_BRANCHES, SessionAdmission, SessionTurn
from dovetail.routing.session_turns import SchedulingLimits, TurnEnd, TurnProfile

PROFILE = TurnProfile("s", "s#0", "", "head")


def request(tokens: int) -> EngineRequest:
    return EngineRequest(f"r{tokens}", array("I", [1] * tokens), 100, expected_tokens=0)


def states(sessions: SessionAdmission) -> list[tuple[str, str]]:
    return [(state.session, state.status) for _, state in sessions.sessions()]


async def begin(sessions: SessionAdmission, tokens: int) -> SessionTurn:
    turn = sessions.begin_turn(PROFILE)
    assert await turn.enter(0, request(tokens))
    return turn


def test_cancelled_turn_leaves_the_place_to_other_turns_of_its_conversation() -> None:
    async def scene() -> None:
        sessions = SessionAdmission(1_000)
        sessions.add_replica(0, "engine", None)
        first, second = await begin(sessions, 500), await begin(sessions, 600)
        second.cancel(release=True)
        assert states(sessions) == [("s#0", "running")]
        first.finish(TurnEnd(510, (("bash", "ls"),)))
        assert states(sessions) == [("s#0", "held")]
        sessions.release_session("s")
        assert states(sessions) == []
        sessions.stop()

    run_jumping(scene())


def test_last_turn_that_is_cancelled_frees_the_place() -> None:
    async def scene() -> None:
        sessions = SessionAdmission(1_000)
        sessions.add_replica(0, "engine", None)
        turns = [await begin(sessions, 500) for _ in range(3)]
        for turn in turns:
            assert states(sessions) == [("s#0", "running")]
            turn.cancel(release=True)
        assert states(sessions) == []
        assert len(sessions._branches) == 0
        sessions.stop()

    run_jumping(scene())


def test_nothing_is_retained_for_a_session_that_has_ended() -> None:
    async def scene() -> None:
        retained: list[tuple[str, float]] = []
        sessions = SessionAdmission(1_000, SchedulingLimits(prefill_tokens_per_second=10.0))
        sessions.add_replica(0, "engine", None, lambda *call: retained.append(call))
        turn = await begin(sessions, 500)
        turn.release_session()
        turn.finish(TurnEnd(510, (("bash", "ls"),)))
        assert retained == [("r500", 0.0)]
        assert states(sessions) == []
        assert not any(one._sessions for _, one in sessions.schedulers())
        sessions.stop()

    run_jumping(scene())


def test_queue_continues_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        sessions = SessionAdmission(1_000)
        sessions.add_replica(0, "engine", None)
        queue = sessions.queue(0)
        assert queue is not None
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: errors.append(context["exception"])
        )
        first = await begin(sessions, 900)
        second = sessions.begin_turn(TurnProfile("o", "o#0", "", "other"))
        waiting = asyncio.create_task(second.enter(0, request(400)))
        await asyncio.sleep(0)
        error = RuntimeError("a fault")
        with monkeypatch.context() as broken:
            broken.setattr(queue.scheduler, "admit", Mock(side_effect=error))
            await asyncio.sleep(0.1)
        assert errors == [error]
        first.cancel(release=True)
        assert await asyncio.wait_for(waiting, 1.0)
        sessions.stop()

    run_jumping(scene())


def test_conversations_that_wait_are_not_forgotten() -> None:
    async def scene() -> None:
        sessions = SessionAdmission(1_000)
        sessions.add_replica(0, "engine", None)
        blocking = sessions.begin_turn(TurnProfile("blocking", "blocking#0", "", "other"))
        assert await blocking.enter(0, request(900))
        waiting = sessions.begin_turn(PROFILE)
        task = asyncio.create_task(waiting.enter(0, request(800)))
        await asyncio.sleep(0)
        for number in range(1, MAX_BRANCHES + 2):
            sessions.begin_turn(TurnProfile("s", f"s#{number}", "", "head"))
        blocking.cancel(release=True)
        assert await task
        sessions.release_session("s")
        waiting.finish(TurnEnd(810, (("bash", "ls"),)))
        assert states(sessions) == []
        sessions.stop()

    run_jumping(scene())


def test_cancelled_turn_leaves_the_place_to_one_that_waits() -> None:
    async def scene() -> None:
        sessions = SessionAdmission(1_000)
        sessions.add_replica(0, "engine", None)
        other = sessions.begin_turn(TurnProfile("o", "o#0", "", "other"))
        assert await other.enter(0, request(400))
        first = await begin(sessions, 500)
        second = sessions.begin_turn(PROFILE)
        waiting = asyncio.create_task(second.enter(0, request(900)))
        await asyncio.sleep(0)
        first.cancel(release=True)
        assert dict(states(sessions)) == {"o#0": "running", "s#0": "paused"}
        assert sum(one.used_tokens for _, one in sessions.schedulers()) == 900
        other.cancel(release=True)
        assert await waiting
        second.finish(TurnEnd(900, (("bash", "ls"),)))
        assert states(sessions) == [("s#0", "held")]
        sessions.stop()

    run_jumping(scene())
