"""Session scheduling in closed-loop simulations: the figures of the documentation, in small."""

from dataclasses import replace

import pytest

from dovetail.routing.session_turns import SchedulingLimits
from dovetail.simulate.agent_sessions import AgentSession, SessionWorkload, generate_sessions
from dovetail.simulate.session_engine import EngineModel
from dovetail.simulate.session_policies import create_policy
from dovetail.simulate.session_simulation import SessionResult, SessionSimulation, measure_demand

POLICIES = ("fcfs", "cap:6", "thunder", "auto", "oracle")


@pytest.fixture(scope="module")
def sessions() -> list[AgentSession]:
    return generate_sessions(SessionWorkload(sessions=48, concurrency=16, seed=11))


def run(
    sessions: list[AgentSession], name: str, oversubscription: float, rate: float = 10_000.0
) -> SessionResult:
    model = EngineModel(1, prefill_tokens_per_second=rate)
    blocks = int(measure_demand(sessions, model) / oversubscription / 64)
    model = replace(model, blocks=blocks)
    return SessionSimulation(sessions, model, create_policy(name, model, SchedulingLimits())).run(
        name
    )


@pytest.mark.parametrize("name", POLICIES)
def test_every_turn_of_every_session_runs(sessions: list[AgentSession], name: str) -> None:
    result = run(sessions, name, 2)
    assert len(result.turns) == sum(len(one.turns) for one in sessions)
    assert len(result.durations) == len(sessions)


def test_scheduling_avoids_repeated_prefill(sessions: list[AgentSession]) -> None:
    off, auto = run(sessions, "fcfs", 2), run(sessions, "auto", 2)
    assert auto.re_prefilled_tokens < 0.2 * off.re_prefilled_tokens
    assert auto.sessions_per_hour > 1.3 * off.sessions_per_hour
    assert auto.timeouts == 0


def test_scheduling_changes_nothing_without_oversubscription(sessions: list[AgentSession]) -> None:
    off, auto = run(sessions, "fcfs", 0.4), run(sessions, "auto", 0.4)
    assert auto.delayed_turns == 0
    assert auto.turns == off.turns


@pytest.mark.parametrize("oversubscription", [2, 4])
@pytest.mark.parametrize("rate", [2_000.0, 10_000.0, 100_000.0, 1_000_000.0])
def test_scheduling_does_not_slow_sessions_down(
    sessions: list[AgentSession], rate: float, oversubscription: float
) -> None:
    """Where prefill is so fast that waiting does not pay, turns hardly wait."""
    off, auto = (run(sessions, name, oversubscription, rate) for name in ("fcfs", "auto"))
    assert auto.sessions_per_hour > 0.95 * off.sessions_per_hour
    assert auto.timeouts == 0


@pytest.mark.parametrize("name", ["cap", "cap:0", "cap:x", "lifo", "auto:3", ""])
def test_unknown_policies_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="must be fcfs, cap:N"):
        create_policy(name, EngineModel(10), SchedulingLimits())
