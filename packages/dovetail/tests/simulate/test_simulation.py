"""The simulator, and the targets of the routing policies on generated and shared traces."""

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dovetail.routing.policy import POLICIES, PolicyName
from dovetail.simulate.generator import AgentWorkload, generate_trace
from dovetail.simulate.report import build_plot
from dovetail.simulate.simulation import (
    ReplicaModel,
    Simulation,
    SimulationResult,
    ideal_hit_rate,
)
from dovetail.simulate.trace import RequestTrace, TraceFormatError, TraceRequest, read_trace

SHARED_TRACE = Path(
    os.environ.get("DOVETAIL_AGENT_TRACE")
    or Path(__file__).parents[5] / "shared" / "data" / "traces" / "agents-seed7.jsonl.gz"
)
#: Blocks per worker, the hit rate of pure stickiness, and of Dynamo's best setting.
TARGETS = [(16_384, 0.938, 0.903), (8_192, 0.938, 0.911), (4_096, 0.904, 0.893)]
MAX_BALANCE = 1.3


def run(trace: RequestTrace, blocks: int, policy: PolicyName = "kv") -> SimulationResult:
    return Simulation(trace, 4, ReplicaModel(blocks), policy).run()


@pytest.fixture(scope="module")
def agents() -> RequestTrace:
    return generate_trace(AgentWorkload(sessions=24, seed=3))


@pytest.fixture(scope="module")
def shared_trace() -> RequestTrace:
    if not SHARED_TRACE.exists():
        pytest.skip("the shared trace is not available")
    return read_trace(SHARED_TRACE)


def heat(trace: RequestTrace, copies: int) -> RequestTrace:
    """Add copies of all sessions that have the most frequent head, with other prompts after it."""
    hot = trace.requests[0].blocks[0]
    first: dict[int, set[str | None]] = {}  # a block of the head is in several sessions
    for request in trace.requests:
        for block in request.blocks:
            first.setdefault(block, set()).add(request.session)
    added = [
        TraceRequest(
            request.time + 1.5 * copy,
            request.prompt_tokens,
            request.output_tokens,
            tuple(b if len(first[b]) > 1 else b + (copy << 40) for b in request.blocks),
            f"{request.session}-{copy}",
        )
        for request in trace.requests
        if request.blocks[0] == hot
        for copy in range(1, copies + 1)
    ]
    requests = sorted((*trace.requests, *added), key=lambda one: one.time)
    return replace(trace, requests=tuple(requests))


def fork(trace: RequestTrace, forks: int) -> RequestTrace:
    """Add subagents that continue the longest session from its middle, all at about one time."""
    sessions: dict[str | None, list[TraceRequest]] = {}
    for request in trace.requests:
        sessions.setdefault(request.session, []).append(request)
    longest = max(sessions.values(), key=len)
    base, *turns = longest[len(longest) // 2 :]
    known = len(base.blocks)
    added = [
        replace(
            turn,
            time=base.time + 0.5 + 4 * number + 0.2 * copy,
            blocks=turn.blocks[:known] + tuple(b + (copy << 40) for b in turn.blocks[known:]),
            session=f"fork-{copy}",
        )
        for copy in range(1, forks + 1)
        for number, turn in enumerate(turns)
    ]
    requests = sorted((*trace.requests, *added), key=lambda one: one.time)
    return replace(trace, requests=tuple(requests))


@pytest.mark.parametrize(("blocks", "sticky", "dynamo"), TARGETS)
def test_targets_on_the_shared_trace(
    shared_trace: RequestTrace, blocks: int, sticky: float, dynamo: float
) -> None:
    result = run(shared_trace, blocks)
    assert result.hit_rate >= max(sticky - 0.005, dynamo)
    assert result.balance <= MAX_BALANCE


@pytest.mark.parametrize("blocks", [16_384, 8_192, 4_096])
@pytest.mark.parametrize("group", ["head", "forks"])
def test_hot_group_of_the_shared_trace_is_spread(
    shared_trace: RequestTrace, blocks: int, group: str
) -> None:
    trace = heat(shared_trace, 2) if group == "head" else fork(shared_trace, 24)
    result = run(trace, blocks)
    assert result.balance <= MAX_BALANCE
    assert result.hit_rate >= run(trace, blocks, "session").hit_rate - 0.005


def test_policies_on_a_generated_trace(agents: RequestTrace) -> None:
    kv, session, rotation = (
        run(agents, 16_384, policy) for policy in ("kv", "session", "round-robin")
    )
    assert ideal_hit_rate(agents) >= kv.hit_rate >= session.hit_rate - 0.005
    assert kv.hit_rate > rotation.hit_rate + 0.05
    assert kv.balance <= MAX_BALANCE
    assert kv.ttft(0.5) < rotation.ttft(0.5)


def test_hot_group_of_a_generated_trace_is_spread(agents: RequestTrace) -> None:
    assert run(heat(agents, 2), 16_384).balance <= MAX_BALANCE
    assert run(fork(agents, 12), 16_384).balance <= MAX_BALANCE


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_served_once(agents: RequestTrace, policy: PolicyName) -> None:
    result = run(agents, 4_096, policy)
    assert len(result.requests) == len(agents.requests)
    assert sum(result.decisions.values()) == len(agents.requests)
    assert sum(one.prompt_tokens for one in result.requests) == agents.prompt_tokens
    assert all(0 <= one.cached_tokens <= one.prompt_tokens for one in result.requests)


def test_results_are_reproducible(agents: RequestTrace) -> None:
    assert run(agents, 4_096).requests == run(agents, 4_096).requests
    assert generate_trace(AgentWorkload(24, seed=3)) == agents


def one_replica(*requests: TraceRequest, caches_output: bool = False) -> SimulationResult:
    model = ReplicaModel(100, 1000.0, 0.1, caches_output)
    return Simulation(RequestTrace(requests, 10), 1, model, "kv").run()


def test_times_of_a_queue() -> None:
    """Two prompts of 100 tokens at the same time, at 1000 tokens per second."""
    first = TraceRequest(0.0, 100, 5, tuple(range(10)), "a")
    second = TraceRequest(0.0, 100, 5, tuple(range(20, 30)), "b")
    times = [one.ttft_seconds for one in one_replica(first, second).requests]
    assert times == pytest.approx([0.2, 0.3])


def test_requests_wait_for_blocks() -> None:
    """Running requests keep their blocks: the second one starts when the first one has finished."""
    first = TraceRequest(0.0, 600, 11, tuple(range(60)), "a")  # finishes after 1.7 s
    second = TraceRequest(0.0, 600, 1, tuple(range(100, 160)), "b")
    shared = TraceRequest(0.0, 630, 1, tuple(range(63)), "c")
    assert [one.ttft_seconds for one in one_replica(first, second).requests] == pytest.approx(
        [0.7, 2.4]
    )
    result = one_replica(first, shared)
    assert [one.cached_tokens for one in result.requests] == [0, 600]
    assert [one.ttft_seconds for one in result.requests] == pytest.approx([0.7, 0.73])


def test_a_request_that_is_larger_than_the_cache_runs_alone() -> None:
    first = TraceRequest(0.0, 2000, 1, tuple(range(200)), "a")
    second = TraceRequest(0.0, 100, 1, tuple(range(300, 310)), "b")
    assert [one.ttft_seconds for one in one_replica(first, second).requests] == pytest.approx(
        [2.1, 2.3]
    )


def test_requests_of_a_session_wait_for_each_other() -> None:
    first = TraceRequest(0.0, 100, 11, tuple(range(10)), "a")  # finishes after 1.2 s
    second = TraceRequest(0.1, 150, 1, tuple(range(15)), "a")
    result = one_replica(first, second)
    assert [one.cached_tokens for one in result.requests] == [0, 100]
    assert result.requests[1].ttft_seconds == pytest.approx(0.15)


def test_output_is_cached_if_the_next_prompt_contains_it() -> None:
    first = TraceRequest(0.0, 100, 30, tuple(range(10)), "a")
    second = TraceRequest(60.0, 150, 1, tuple(range(15)), "a")
    cached = [one.cached_tokens for one in one_replica(first, second, caches_output=True).requests]
    assert cached == [0, 130]


def test_trace_is_read_with_its_block_size(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    lines = [
        {"timestamp": 1500, "input_length": 130, "output_length": 7, "hash_ids": [1, 2, 4]},
        {"timestamp": 20, "input_length": 128, "output_length": 7, "hash_ids": [1, 2]},
    ]
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    trace = read_trace(path)
    assert trace.block_tokens == 64
    assert [request.time for request in trace.requests] == [0.02, 1.5]
    assert trace.requests[1].blocks == (1, 2)  # the last block is not complete


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no requests"),
        ('{"schema":"dovetail.request/1"}', "is not a trace"),
        ('{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[]}', "--block-size"),
        (
            '{"timestamp":0,"input_length":-5,"output_length":1,"hash_ids":[1]}',
            "line 1: `input_length` must be >= 0, got -5",
        ),
        (
            '{"timestamp":-1,"input_length":5,"output_length":1,"hash_ids":[1]}',
            "line 1: `timestamp` must be >= 0, got -1",
        ),
    ],
)
def test_invalid_traces_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(TraceFormatError, match=message):
        read_trace(path)


def test_damaged_compressed_trace_is_rejected(tmp_path: Path) -> None:
    line = b'{"timestamp":0,"input_length":16,"output_length":1,"hash_ids":[1]}\n'
    content = bytearray(gzip.compress(line * 5000, mtime=0))
    content[30] ^= 0xFF
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(TraceFormatError, match="cannot be read"):
        read_trace(path)


def test_block_size_that_the_trace_does_not_have_is_rejected(tmp_path: Path) -> None:
    """The hit rates would be wrong without a sign of it."""
    path = tmp_path / "trace.jsonl"
    lines = [(1024, [1, 2]), (1300, [1, 2, 3]), (1300, [1, 2])]  # some omit incomplete blocks
    path.write_text(
        "\n".join(
            json.dumps({"timestamp": 0, "input_length": n, "output_length": 1, "hash_ids": ids})
            for n, ids in lines
        )
    )
    assert read_trace(path, 512).block_tokens == 512
    for wrong in (64, 256, 2048):
        with pytest.raises(TraceFormatError, match=rf"blocks of {wrong} tokens \(--block-size\)"):
            read_trace(path, wrong)


def test_plot_is_valid_svg(agents: RequestTrace) -> None:
    results = [run(agents, 4_096, policy) for policy in POLICIES]
    root = ElementTree.fromstring(build_plot(results, "a < b"))
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a < b", *POLICIES} <= set(texts)
