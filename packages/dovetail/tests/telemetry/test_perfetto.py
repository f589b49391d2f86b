"""Timelines follow the trace event format and show tool waits."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto_environment import FAULTS, SLICES, run_queries
from perfetto_format import faults
from typer.testing import CliRunner

from dovetail.cli.main import build_app
from dovetail.telemetry.record import OutputSpan, ToolCallRecord
from dovetail.telemetry.trace.perfetto import build_timeline
from dovetail.telemetry.trace.reader import Trace
from dovetail.telemetry.trace.sessions import summarize_sessions
from dovetail.telemetry.trace.writer import TraceLine
from dovetail_model import Usage

Json = dict[str, Any]


def line(began: float, duration: float = 1.0, **more: Any) -> TraceLine:
    fields: Json = {"id": f"r{began}", "endpoint": "messages", "status": 200, **more}
    return TraceLine(event="request_end", began=began, duration=duration, **fields)


def turn(began: float, **more: Any) -> TraceLine:
    """Build a turn of one second with all parts. Its call is dispatched after 0.8 s."""
    usage = Usage(input_tokens=100, output_tokens=20, cached_tokens=64)
    times = {
        "decoded": 0.01,
        "admitted": 0.02,
        "prepared": 0.05,
        "first_token": 0.2,
        "last_event": 0.9,
    }
    parts: Json = {
        "reasoning_spans": (OutputSpan(0.2, 0.5),),
        "calls": (ToolCallRecord(f"call_{began}", "look_up", 0.6, 0.8),),
        "usage": usage,
        **times,
    }
    return line(began, **(parts | more))


def session(*lines: TraceLine) -> Json:
    drawn = build_timeline(Trace(tuple(sorted(lines, key=lambda one: one.began))))
    shown: Json = json.loads(msgspec.json.encode(drawn))
    assert faults(shown) == []
    return shown


def slices(drawn: Json, kind: str) -> list[Json]:
    return [e for e in drawn["traceEvents"] if e["ph"] == "X" and e["cat"] == kind]


def names(drawn: Json, kind: str) -> dict[int, str]:
    place = "tid" if kind == "thread_name" else "pid"
    return {
        e[place]: e["args"]["name"]
        for e in drawn["traceEvents"]
        if e["ph"] == "M" and e["name"] == kind
    }


LOOP = (
    turn(100.0, session="s"),
    turn(103.0, session="s", results=("call_100.0",)),
    turn(106.0, session="s", results=("call_103.0",), calls=()),
)


def test_a_tool_loop() -> None:
    drawn = session(*LOOP)
    assert [one["ts"] for one in slices(drawn, "turn")] == [100e6, 103e6, 106e6]
    waits = slices(drawn, "tool wait")
    assert [(one["name"], one["ts"], one["dur"]) for one in waits] == [
        ("wait look_up", 100.8e6, 2.2e6),
        ("wait look_up", 103.8e6, 2.2e6),
    ]
    for kind in ("receive", "queue", "prepare", "prefill", "reasoning"):
        assert len(slices(drawn, kind)) == 3, kind
    assert [one["name"] for one in slices(drawn, "tool call")] == ["look_up", "look_up"]
    assert list(names(drawn, "process_name").values()) == ["session s"]
    assert list(names(drawn, "thread_name").values()) == ["main", "main: tools"]
    counted = [e["args"] for e in drawn["traceEvents"] if e["ph"] == "C"]
    assert counted == [{"cached": 64, "prefilled": 36, "output": 20}] * 3
    arrows = [(e["ph"], e["ts"]) for e in drawn["traceEvents"] if e["ph"] in "sf"]
    assert arrows == [("s", 100.8e6 - 1), ("f", 103e6), ("s", 103.8e6 - 1), ("f", 106e6)]


def test_sub_agents_are_threads_of_their_session() -> None:
    drawn = session(
        turn(1.0, session="s"),
        turn(1.9, session="s", agent="explorer", parent="s"),
        turn(2.0, session="child", parent="s", agent="review"),
        turn(2.1, session="grandchild", parent="child"),
        turn(2.2, session="other"),
        turn(2.3, session="s", tenant="team"),
        turn(2.4),
    )
    assert list(names(drawn, "process_name").values()) == [
        "session s",
        "session other",
        "session s (team)",
        "requests without a session",
    ]
    threads = names(drawn, "thread_name")
    of_session = [threads[e["tid"]] for e in slices(drawn, "turn") if e["pid"] == 1]
    assert of_session == ["main", "explorer", "review child", "sub-agent grandchild"]


def test_concurrent_requests_get_separate_tracks() -> None:
    drawn = session(*(turn(1.0 + at / 10, session="s") for at in range(4)), turn(2.05, session="s"))
    threads = [names(drawn, "thread_name")[e["tid"]] for e in slices(drawn, "turn")]
    assert threads == ["main", "main (2)", "main (3)", "main (4)", "main"]


def test_concurrent_calls_get_separate_tracks() -> None:
    calls = (
        ToolCallRecord("a", "look_up", 0.6, 0.7),
        ToolCallRecord("b", "", 0.7, 0.8),
        ToolCallRecord("c", "x", 0.8),
    )
    drawn = session(
        turn(1.0, session="s", calls=calls), turn(5.0, session="s", results=("b", "a"), calls=())
    )
    waits = slices(drawn, "tool wait")
    assert [one["name"] for one in waits] == ["wait look_up", "wait tool"]
    assert len({one["tid"] for one in waits}) == 2
    # A truncated call lasts until the end of the response and has no tool wait.
    assert [one["ts"] + one["dur"] for one in slices(drawn, "tool call")] == [1.7e6, 1.8e6, 1.9e6]


def test_slices_without_duration_do_not_nest(tmp_path: Path) -> None:
    """Calls of one burst begin and end at the same time. Perfetto reports their nesting."""
    burst = tuple(ToolCallRecord(id, "look_up", 0.6, 0.6) for id in "abc")
    at_once = {"decoded": 0.0, "admitted": 0.0, "prepared": 0.0, "first_token": 0.0}
    drawn = session(
        turn(1.0, session="s", reasoning_spans=(OutputSpan(0.0, 0.0),), calls=burst, **at_once),
        turn(1.6, session="s", results=("a", "b", "c"), calls=()),
        line(4.0, 0.0, session="s"),
        line(4.0, 0.0, session="s"),
    )
    calls = slices(drawn, "tool call")
    assert [(one["ts"], one["dur"]) for one in calls] == [(1.6e6 + at, 1) for at in range(3)]
    path = tmp_path / "drawn.json"
    path.write_text(json.dumps(drawn))
    wrong, found = run_queries(path, FAULTS, SLICES)
    assert wrong == []
    assert len(found) == sum(e["ph"] == "X" for e in drawn["traceEvents"])
    for kind, _, _, _, depth, *_, above, _, _ in found:
        expected = (0, None) if kind in ("turn", "tool wait") else (1, "turn")
        assert (depth, above) == expected, kind


def test_results_of_other_tenants_are_ignored() -> None:
    later = turn(3.0, session="s", tenant="b", results=("call_1.0",))
    assert not slices(session(turn(1.0, session="s", tenant="a"), later), "tool wait")


def test_a_cycle_of_parents_ends() -> None:
    drawn = session(turn(1.0, session="a", parent="b"), turn(3.0, session="b", parent="a"))
    assert len(slices(drawn, "turn")) == 2


MOMENT = st.floats(0, 3)


@st.composite
def anything(draw: st.DrawFn) -> TraceLine:
    """Draw a line with parts at any time, including impossible ones."""
    ids = st.sampled_from(["a", "b", "c"])
    calls = st.builds(ToolCallRecord, ids, st.sampled_from(["", "x"]), MOMENT, st.none() | MOMENT)
    return line(
        draw(MOMENT),
        draw(st.floats(0, 2)),
        session=draw(st.sampled_from([None, "s", "t"])),
        parent=draw(st.sampled_from([None, "s", "t", "agent"])),
        agent=draw(st.sampled_from([None, "agent"])),
        decoded=draw(st.none() | MOMENT),
        admitted=draw(st.none() | MOMENT),
        first_token=draw(st.none() | MOMENT),
        reasoning_spans=tuple(draw(st.lists(st.builds(OutputSpan, MOMENT, MOMENT), max_size=3))),
        calls=tuple(draw(st.lists(calls, max_size=4))),
        results=tuple(draw(st.lists(ids, max_size=2))),
        usage=draw(st.none() | st.just(Usage(5, 3, 2))),
    )


@settings(deadline=None)
@given(st.lists(anything(), max_size=8))
def test_timeline_of_any_trace_is_well_formed(lines: list[TraceLine]) -> None:
    drawn = session(*lines)
    assert len(slices(drawn, "turn")) == len(lines)


def _first(drawn: Json, phase: str) -> Json:
    event: Json = next(e for e in drawn["traceEvents"] if e["ph"] == phase)
    return event


SPOILT: dict[str, Callable[[Json], object]] = {
    "no list": lambda d: d.update(traceEvents={}),
    "a strange phase": lambda d: _first(d, "X").update(ph="Z"),
    "a negative length": lambda d: _first(d, "X").update(dur=-1),
    "no length": lambda d: _first(d, "X").update(dur=0),
    "a time in words": lambda d: _first(d, "X").update(ts="1"),
    "no thread": lambda d: _first(d, "X").pop("tid"),
    "an overlap": lambda d: d["traceEvents"].append(
        _first(d, "X") | {"ts": _first(d, "X")["ts"] + 10}
    ),
    "a nameless process": lambda d: _first(d, "X").update(pid=77),
    "a name given twice": lambda d: d["traceEvents"].append(_first(d, "M")),
    "half a flow": lambda d: d["traceEvents"].remove(_first(d, "f")),
    "a flow back in time": lambda d: _first(d, "s").update(ts=_first(d, "f")["ts"] + 1),
    "a flow from nowhere": lambda d: _first(d, "s").update(ts=1),
    "a counter of words": lambda d: _first(d, "C")["args"].update(cached="many"),
    "strange metadata": lambda d: _first(d, "M").update(name="process_colour"),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_the_checker_finds_invalid_timelines(spoil: Callable[[Json], object]) -> None:
    drawn = copy.deepcopy(session(*LOOP))
    spoil(drawn)
    assert faults(drawn)


def test_summaries_add_up() -> None:
    lines = (*LOOP, turn(104.0, session="s", agent="explorer", status=503), line(99.0))
    (one,) = summarize_sessions(Trace(tuple(sorted(lines, key=lambda found: found.began))))
    assert (one.name, one.requests, one.failed, one.agents) == ("session s", 4, 1, 2)
    assert (one.calls, one.input_tokens, one.output_tokens) == (3, 400, 80)
    assert one.cached_share == 0.64
    assert one.response_seconds == 4.0
    assert round(one.reasoning_seconds, 6) == 1.2
    assert round(one.tool_wait_seconds, 6) == 4.4


def write(path: Path, *lines: TraceLine) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in lines))
    return path


def test_the_commands(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", *LOOP, turn(101.0, session="other", tenant="team"))
    out = tmp_path / "out.json"
    result = CliRunner().invoke(build_app(), ["trace", "perfetto", str(path), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert out.stat().st_mode & 0o777 == 0o600
    drawn = json.loads(out.read_bytes())
    assert faults(drawn) == []
    assert len(slices(drawn, "turn")) == 4
    for filters, turns in (
        (["--session", "s"], 3),
        (["--tenant", "team"], 1),
        (["--session", "s", "--tenant", "team"], None),
    ):
        result = CliRunner().invoke(build_app(), ["trace", "perfetto", str(path), *filters])
        if turns is None:
            assert result.exit_code == 1
            assert "no request in the trace files matches" in result.output
        else:
            assert len(slices(json.loads(result.stdout), "turn")) == turns
    result = CliRunner().invoke(build_app(), ["trace", "summary", str(path)])
    assert result.exit_code == 0
    rows = result.stdout.splitlines()
    assert rows[0].split()[:3] == ["session", "requests", "failed"]
    assert rows[1].split() == [
        *("session", "s", "3", "0", "1", "2", "300", "64%", "0", "60", "3.0s", "0.9s", "4.4s"),
    ]
    marked = write(tmp_path / "marked.jsonl", turn(101.0, session="[/red]\x1b[31m"))
    result = CliRunner().invoke(build_app(), ["trace", "summary", str(marked)])
    assert "session [/red]?[31m" in result.stdout  # neither markup nor escape sequences
    strange = tmp_path / "strange"
    strange.write_text("hello\n")
    result = CliRunner().invoke(build_app(), ["trace", "summary", str(strange)])
    assert result.exit_code == 1
    assert "is not a trace" in result.output
