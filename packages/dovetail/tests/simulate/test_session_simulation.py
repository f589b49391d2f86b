"""Session scheduling in closed-loop simulations: the figures of the documentation, in small."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from server_process import dovetail

from dovetail.routing.session_turns import SchedulingLimits
from dovetail.simulate.agent_sessions import (
    AgentSession,
    SessionWorkload,
    generate_sessions,
    read_sessions,
)
from dovetail.simulate.session_engine import EngineModel
from dovetail.simulate.session_policies import create_policy
from dovetail.simulate.session_simulation import SessionResult, SessionSimulation, measure_demand
from dovetail.simulate.trace import read_trace
from dovetail.telemetry.record import ToolCallRecord
from dovetail.telemetry.trace.writer import TraceLine
from dovetail_model import Usage

SVG = "{http://www.w3.org/2000/svg}"
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


def replace_turns(session: AgentSession, turns: int) -> AgentSession:
    """Return a session with only the first turns."""
    *before, last = session.turns[:turns]
    short = replace(session, turns=(*before, replace(last, gap_seconds=None, tool=None)))
    short.turns = tuple(replace(turn, session=short) for turn in short.turns)
    return short


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


def test_little_is_prefilled_again_at_twice_the_kv_cache() -> None:
    """The workload and the KV cache of the measurements on an H200, with its rate of prefill."""
    model = EngineModel(196_768 // 64, prefill_tokens_per_second=15_000.0)
    sums: Counter[tuple[str, str]] = Counter()
    for seed in (1, 2, 3):
        workload = SessionWorkload(
            sessions=96,
            concurrency=32,
            head_tokens=2_048,
            grown_tokens=(100, 900),
            output_tokens=(70, 70),
            seed=seed,
        )
        for name in ("fcfs", "cap:16", "cap:18", "cap:20", "auto"):
            policy = create_policy(name, model, SchedulingLimits())
            result = SessionSimulation(generate_sessions(workload), model, policy).run(name)
            sums[name, "tokens"] += result.re_prefilled_tokens
            sums[name, "sessions"] += round(result.sessions_per_hour)
    assert sums["auto", "tokens"] <= 0.1 * sums["fcfs", "tokens"]
    assert sums["auto", "sessions"] >= 1.5 * sums["fcfs", "sessions"]
    assert sums["auto", "sessions"] > max(sums[f"cap:{n}", "sessions"] for n in (16, 18, 20))


def test_scheduling_changes_nothing_without_oversubscription(sessions: list[AgentSession]) -> None:
    off, auto = run(sessions, "fcfs", 0.4), run(sessions, "auto", 0.4)
    assert auto.delayed_turns == 0
    assert auto.turns == off.turns


def test_makespan_ends_with_the_last_turn(sessions: list[AgentSession]) -> None:
    """Deadlines of the scheduler that are left when all turns have ended do not count."""
    short = [replace_turns(one, 2) for one in sessions if one.follows is None]
    result = run(short, "auto", 4)
    assert result.delayed_turns
    starts = [one.start for one in short]
    ends = [one.start + result.durations[one] for one in short]
    assert result.makespan_seconds == pytest.approx(max(ends) - min(starts))


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


def test_gaps_of_generated_sessions_are_an_option(tmp_path: Path) -> None:
    flags = ("--scheduling", "fcfs", "--sessions", "8", "--oversubscription", "0.5")
    short, long = (
        dovetail("simulate", *flags, "--gaps", kind, home=tmp_path) for kind in ("short", "long")
    )
    assert short.status == long.status == 0, short.err + long.err
    assert short.out != long.out
    wrong = dovetail("simulate", *flags, "--gaps", "none", home=tmp_path)
    assert wrong.status == 2
    assert "--gaps must be one of short, long, got none" in wrong.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gaps", "long"], "--gaps requires --scheduling"),
        (["--oversubscription", "2"], "--oversubscription requires --scheduling"),
        (["--scheduling", "fcfs", "--replicas", "4"], "--replicas cannot be used with --sched"),
        (["--scheduling", "fcfs", "--policy", "kv"], "--policy cannot be used with --scheduling"),
        (["--block-size", "64"], "--block-size requires a trace"),
        (["TRACE", "--seed", "7"], "--seed cannot be used with a trace"),
        (["TRACE", "--scheduling", "fcfs", "--gaps", "long"], "--gaps cannot be used with a trace"),
        (["--scheduling", "fcfs, lifo"], "--scheduling must be fcfs, cap:N, thunder, auto or"),
    ],
)
def test_options_without_effect_are_rejected(
    tmp_path: Path, flags: list[str], message: str
) -> None:
    trace = str(record(tmp_path))
    result = dovetail(
        "simulate", *(trace if flag == "TRACE" else flag for flag in flags), home=tmp_path
    )
    assert result.status == 2
    assert message in result.err
    assert not result.out


def record(tmp_path: Path) -> Path:
    """Write the trace of a session with two tool calls and a user turn, as a server does."""
    lines = [
        TraceLine(
            event="request_end",
            id=f"r{turn}",
            endpoint="messages",
            status=200,
            began=1_000.0 + began,
            duration=2.0,
            session="a",
            usage=Usage(input_tokens=64 * blocks, output_tokens=10),
            calls=tuple(ToolCallRecord(f"c{turn}", name, 1.0, 2.0) for name in tools),
            prefix_blocks=tuple(f"b{number}" for number in range(blocks)),
            prefix_block_tokens=64,
        )
        for turn, (began, blocks, tools) in enumerate(
            [(0.0, 2, ["Read"]), (3.0, 3, ["Read", "Bash"]), (10.0, 4, []), (70.0, 5, [])]
        )
    ]
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def test_trace_of_a_server_has_tools_and_gaps(tmp_path: Path) -> None:
    (session,) = read_sessions(read_trace(record(tmp_path)))
    assert [turn.gap_seconds for turn in session.turns] == pytest.approx([1.0, 5.0, 58.0, None])
    assert [turn.tool for turn in session.turns] == [("Read", ""), ("Bash+Read", ""), None, None]
    assert [turn.prompt_tokens for turn in session.turns] == [128, 192, 256, 320]


def test_trace_of_a_server_is_simulated_and_plotted(tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    flags = ("--scheduling", "fcfs,auto", "--plot", plot)
    result = dovetail("simulate", record(tmp_path), *flags, home=tmp_path)
    assert result.status == 0, result.err
    assert "1 sessions" in result.out
    texts = [one.text for one in ElementTree.fromstring(plot.read_text()).iter(f"{SVG}text")]
    assert {"fcfs", "auto", "sessions per hour"} <= set(texts)
