"""The trace and the timeline of a real server: agents with sub-agents in tool loops."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from agent_clients import Agent, ClaudeCode, Codex
from perfetto_environment import COUNTERS, FAULTS, FLOWS, SLICES, run_queries
from perfetto_format import faults
from server_process import NAME, Running, dovetail, qwen_folder, served
from websockets.sync.client import connect

from dovetail.telemetry.trace.reader import Trace, read_traces

STEPS = 4
CALL = (
    "<tool_call>\n<function=run_command>\n<parameter=command>\nls {at}\n</parameter>\n"
    "</function>\n</tool_call>"
)


def _arguments(folder: Path) -> list[str | Path]:
    turns = [
        f"<think>\nA zither, step {at}.\n</think>\n\nI look.\n\n" + CALL.format(at=at)
        for at in range(STEPS - 1)
    ]
    outputs = [*turns, "<think>\nThat is all.\n</think>\n\nThe answer is 42."]
    script, entries = folder / "script.yaml", [{"text": text} for text in outputs]
    # A sub-agent in the session of its caller has separate turns.
    rules = [{"when": {"text": "You explore."}, "turns": entries}]
    script.write_text(json.dumps({"rules": rules, "turns": entries, "end": "fail"}))
    return [
        *(qwen_folder(folder / "model"), "--engine", "scripted", "--script", script),
        *("--tool-call-parser", "qwen3_coder", "--reasoning-parser", "qwen3"),
        *("--served-model-name", NAME, "--model-alias", f"m={NAME}"),
    ]


def _agents() -> list[Agent]:
    """Return two harnesses, each with a sub-agent that is announced in its own way."""
    claude, explorer = ClaudeCode("claude's", "You lead."), ClaudeCode("claude's", "You explore.")
    explorer.headers |= {"x-claude-code-agent-id": "explorer"}
    codex, review = Codex("codex's", "You lead, too."), Codex("a review", "You review.")
    review.headers |= {"x-codex-parent-thread-id": "codex's", "x-openai-subagent": "review"}
    agents: list[Agent] = [claude, explorer, codex, review]
    for agent in agents:
        agent.add_user_message("Where is the xylophone?")
    return agents


def _step(running: Running, agent: Agent) -> None:
    headers = {name.replace("-", "_"): value for name, value in agent.headers.items()}
    path = "/v1/responses" if isinstance(agent, Codex) else "/v1/messages"
    reply = running.request("POST", path, agent.body(), **headers)
    assert reply.status == 200, reply.body
    agent.add_results([(call, "nothing") for call in agent.receive(reply.body)])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the trace and the log of a stopped server."""
    folder = tmp_path_factory.mktemp("traced")
    path = folder / "trace.jsonl"
    more = ("--trace-file", path, "--trace-max-bytes", "9000", "--log-format", "json")
    with served(*_arguments(folder), *more) as running:
        agents = _agents()
        for _ in range(STEPS):
            for agent in agents:
                _step(running, agent)
        running.stop()
        log = running.log.read_text()
    return path, log


def _read(path: Path) -> Trace:
    return read_traces([path, *path.parent.glob(f"{path.name}.*.gz")])


def test_every_request_is_in_the_trace_once(recorded: tuple[Path, str]) -> None:
    path, _ = recorded
    assert len(list(path.parent.glob(f"{path.name}.*.gz"))) >= 1
    trace = _read(path)
    assert (len(trace.lines), trace.skipped_lines) == (4 * STEPS, 0)
    assert len({line.id for line in trace.lines}) == 4 * STEPS
    for at, line in enumerate(trace.lines):
        last = at >= 4 * (STEPS - 1)
        assert len(line.reasoning_spans) == 1
        assert [call.name for call in line.calls] == ([] if last else ["run_command"])
        assert len(line.results) == (1 if at >= 4 else 0)
        assert line.prefix is not None
        assert line.prefix.turns["exact"] == (1 if at >= 4 else 0)
        assert line.prefix.lost == 0
    assert len(list(trace.tool_waits())) == 4 * (STEPS - 1)


def test_trace_and_log_contain_no_text(recorded: tuple[Path, str]) -> None:
    path, log = recorded
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert sum(line["event"] == "request_finished" for line in lines) == 4 * STEPS
    whole = log + repr(_read(path))
    assert not [word for word in ("xylophone", "zither", "ls 0", "nothing") if word in whole]


def _kinds() -> Counter[str]:
    """Count the slices of each kind per session."""
    of_each_turn = ("turn", "receive", "queue", "prepare", "prefill", "reasoning")
    kinds = dict.fromkeys(of_each_turn, 4 * STEPS)
    return Counter(kinds | dict.fromkeys(("tool call", "tool wait"), 4 * (STEPS - 1)))


def test_the_timeline_of_a_session(recorded: tuple[Path, str], tmp_path: Path) -> None:
    path, _ = recorded
    files = [path, *path.parent.glob(f"{path.name}.*.gz")]
    ran = dovetail("trace", "perfetto", *files, "-o", "out.json", home=tmp_path)
    assert ran.status == 0, ran.err
    drawn = json.loads((tmp_path / "out.json").read_text())
    assert faults(drawn) == []
    events = drawn["traceEvents"]
    processes = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {"session claude's", "session codex's"}
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    speakers = {"main", "explorer", "review a review"}
    assert threads == speakers | {f"{one}: tools" for one in speakers}
    assert Counter(event["cat"] for event in events if event["ph"] == "X") == _kinds()
    assert sum(e["ph"] == "s" for e in events) == _kinds()["tool call"]
    ran = dovetail("trace", "summary", *files, "--session", "codex's", home=tmp_path)
    (row,) = ran.out.splitlines()[1:]
    assert row.split()[:6] == ["session", "codex's", "8", "0", "2", "6"]


def test_perfetto_reads_the_timeline(recorded: tuple[Path, str], tmp_path: Path) -> None:
    """The trace processor of Perfetto finds every slice and both ends of every arrow."""
    path, _ = recorded
    files = [path, *path.parent.glob(f"{path.name}.*.gz")]
    ran = dovetail("trace", "perfetto", *files, "-o", "out.json", home=tmp_path)
    assert ran.status == 0, ran.err
    wrong, slices, flows, counters = run_queries(
        tmp_path / "out.json", FAULTS, SLICES, FLOWS, COUNTERS
    )
    assert wrong == []
    assert Counter(kind for kind, *_ in slices) == _kinds()
    for kind, _, begin, length, depth, thread, _, above, above_begin, above_length in slices:
        if kind in ("turn", "tool wait"):
            assert (depth, above) == (0, None)
            assert thread.endswith(": tools") == (kind == "tool wait")
        else:
            assert (depth, above) == (1, "turn")
            assert above_begin <= begin <= begin + length <= above_begin + above_length
    assert len(flows) == _kinds()["tool call"]
    assert {(begun, name, ended) for begun, name, _, ended, _ in flows} == {
        ("tool call", "run_command", "receive")
    }
    assert all(begun <= ended for _, _, begun, _, ended in flows)
    assert {(process, times) for process, _, times, _ in counters} == {
        ("session claude's", STEPS),
        ("session codex's", STEPS),
    }
    assert len(counters) == 4 * 3


def test_payloads_are_logged_and_traced(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    more = ("--trace-file", path, "--trace-payloads")
    with served(*_arguments(tmp_path), *more) as running:
        _step(running, _agents()[0])
        assert "--trace-payloads writes every request and response to" in " ".join(
            running.log.read_text().split()
        )
        running.stop()
    (line,) = read_traces([path]).lines
    assert line.payload is not None
    assert "xylophone" in (line.payload.request or "")
    agent = ClaudeCode()
    agent.receive((line.payload.response or "").encode())
    assert "zither" in repr(agent.history)


def test_websocket_requests_are_in_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with served(*_arguments(tmp_path), "--trace-file", path, "--trace-payloads") as running:
        url = running.url.replace("http", "ws", 1)
        with connect(f"{url}/v1/responses", additional_headers={"thread-id": "t"}) as socket:
            for text in ("One.", "Two."):
                message: dict[str, Any] = {"type": "response.create", "model": "m", "input": text}
                socket.send(json.dumps({**message, "store": False}))
                while json.loads(socket.recv(60))["type"] != "response.completed":
                    pass
        running.stop()
    lines = read_traces([path]).lines
    decoded = [line for line in lines if line.decoded is not None]
    assert [(one.transport, one.status, one.session) for one in decoded] == [
        ("websocket", 200, "t")
    ] * 2
    assert len({one.id for one in decoded}) == 2
    for one, text in zip(decoded, ("One.", "Two."), strict=True):
        assert one.payload is not None
        assert text in (one.payload.request or "")
        assert "response.completed" in (one.payload.response or "")


@pytest.mark.long
def test_each_worker_process_has_a_separate_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with served(*_arguments(tmp_path), "--trace-file", path, "--workers", "2") as running:
        ids = [running.request("GET", "/v1/models").headers["x-request-id"] for _ in range(40)]
        running.stop()
    files = sorted(path.parent.glob("trace*"))
    assert [file.name for file in files] == ["trace-2.jsonl", "trace.jsonl"]
    assert sorted(line.id for line in read_traces(files).lines) == sorted(ids)


def test_an_unwritable_trace_stops_the_startup(tmp_path: Path) -> None:
    ran = dovetail(
        "serve", *_arguments(tmp_path), "--http-port", "0", "--trace-file", "no/t", home=tmp_path
    )
    assert ran.status == 1
    assert "dovetail serve: --trace-file no/t cannot be written" in ran.err
