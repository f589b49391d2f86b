"""The GPU experiments: their parts, and a short run of all on a CPU."""

import asyncio
import json
import os
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest
from benchmarks.frontend.client import Seen
from benchmarks.gpu import claude, rates
from benchmarks.gpu.figures import Alone, Measure, rate_row, ratios, row, saved, turns_row
from benchmarks.gpu.machine import page_of
from benchmarks.gpu.results import Results
from benchmarks.gpu.rounds import CASES, session_names
from benchmarks.gpu.sample_texts import SCRIPTED_TOOLS
from benchmarks.gpu.scripted_engine import (
    PRIMING,
    Note,
    Notebook,
    ScriptedOutputEngine,
    read_notes,
    read_prompt,
)
from benchmarks.gpu.server import END, make_script
from benchmarks.gpu.sessions import REASONING_TOKENS, STEPS, SUFFIX, make_session

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenSink,
)
from dovetail.ledger.equivalence import is_same_arguments
from dovetail_parsers import parse
from dovetail_tokenizers import Tokenizer, load_tokenizer

ROOT = Path(__file__).parents[1]
QWEN3 = ROOT / ".cache" / "tokenizers" / "qwen3"
PYTHON = os.environ.get("DOVETAIL_TORCH_PYTHON", "")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    if not QWEN3.is_dir():
        pytest.skip("no tokenizer qwen3 at hand: make tokenizers")
    return load_tokenizer(QWEN3)


@pytest.mark.parametrize("tokens", [2_500, 52_000])
def test_offer_has_the_requested_length(tokenizer: Tokenizer, tokens: int) -> None:
    offer = claude.make_offer(tokens, lambda text: len(tokenizer.encode(text)))
    texts = [claude.IDENTITY, offer.system, *map(json.dumps, offer.tools)]
    assert sum(len(tokenizer.encode(text)) for text in texts) == pytest.approx(tokens, rel=0.01)
    names = [tool["name"] for tool in offer.tools]
    assert len(set(names)) == len(names)
    assert {"Bash", "Grep"} < set(names)
    assert claude.make_offer(tokens, lambda text: len(tokenizer.encode(text))) == offer


def test_only_the_billing_line_varies() -> None:
    offer = claude.Offer("Be brief.", [])
    one, other, again = (
        json.loads(claude.body(offer, [claude.user("Hi")], "s", header)) for header in (1, 2, 1)
    )
    assert one == again
    assert one["system"][0] != other["system"][0]
    assert "cache_control" not in one["system"][0]
    assert one["system"][1:] == other["system"][1:]
    assert list(one)[:4] == ["model", "messages", "system", "tools"]


def _seen(text: str) -> list[tuple[str, str]]:
    found = parse(text, tool_parser="hermes", reasoning_parser="qwen3", in_reasoning=False)
    return [(block.type, getattr(block, "name", "")) for block in found.blocks]


def test_scripted_output_is_in_qwen3_format(tokenizer: Tokenizer) -> None:
    session_script = make_session("D-1", lambda text: len(tokenizer.encode(text)))
    reasoning = ("reasoning", "")
    assert _seen(session_script.outputs[0]) == [
        reasoning,
        ("tool_call", "Bash"),
        ("tool_call", "Grep"),
    ]
    assert len(tokenizer.encode(session_script.outputs[0])) == pytest.approx(
        REASONING_TOKENS + 130, abs=20
    )
    assert len(tokenizer.encode(session_script.question)) == pytest.approx(SUFFIX, abs=3)
    turns = make_session("Gon-1", lambda text: len(tokenizer.encode(text)))
    assert len(turns.outputs) == STEPS
    kinds = [kind for kind, _ in _seen(turns.outputs[0])]
    assert kinds == ["reasoning", "tool_call", "reasoning", "tool_call"]


def test_sessions_have_distinct_texts(tokenizer: Tokenizer) -> None:
    names = [*session_names(["A", "D", "F"], 2), "Gon-0", "Goff-0"]
    scenes = [make_session(name, lambda text: len(tokenizer.encode(text))) for name in names]
    assert len({session_script.question for session_script in scenes}) == len(names)
    assert make_session("D-1", len) == make_session("D-1", len)


FRAMES: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"usage": {"input_tokens": 3}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "thinking_delta", "thinking": "Look"},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "thinking_delta", "thinking": " here."},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "signature_delta", "signature": "seal"},
    },
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}},
    },
    *(
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": part},
        }
        for part in ('{"timeout": 5000.0, ', '"command": "cd /home/user/project && ls"}')
    ),
    {"type": "message_stop"},
]


def test_stream_is_folded_into_blocks() -> None:
    reasoning, call = claude.fold(FRAMES)
    assert reasoning == {"type": "thinking", "thinking": "Look here.", "signature": "seal"}
    assert call["input"] == {"timeout": 5000.0, "command": "cd /home/user/project && ls"}
    message = claude.results([reasoning, call], ["fine"])
    assert message["content"][0]["tool_use_id"] == "t1"
    with pytest.raises(RuntimeError, match="the stream failed"):
        claude.fold([{"type": "error", "error": "x"}])


def test_rewritten_call_differs_in_form_only() -> None:
    before = claude.fold(FRAMES)
    reasoning, call = claude.rewritten(before)
    assert reasoning == before[0]
    assert json.dumps(call["input"]) == (
        '{"command": "ls", "timeout": 5000, "run_in_background": false}'
    )
    (bash,) = (tool for tool in SCRIPTED_TOOLS if tool["name"] == "Bash")
    ours, theirs = (json.dumps(one["input"]) for one in (before[1], call))
    assert is_same_arguments(ours, theirs, bash["input_schema"])


def test_mutated_reasoning_differs() -> None:
    before = claude.fold(FRAMES)
    reasoning, call = claude.mutated(before)
    assert reasoning["thinking"] != before[0]["thinking"]
    assert call == before[1]
    assert before[0]["thinking"] == "Look here."


class Real:
    """An engine with a prefix cache, in pages of four tokens."""

    name = "real"
    capabilities = EngineCapabilities()

    def __init__(self) -> None:
        self.requests: list[EngineRequest] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def health(self) -> EngineHealth:
        return EngineHealth(True)

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        cached = max((_shared(request.prompt, one.prompt) for one in self.requests), default=0)
        self.requests.append(request)
        ids = [7] * min(request.max_tokens, 3)
        for at, id in enumerate(ids):
            finish = "length" if at == len(ids) - 1 else None
            sink.push(TokenDelta([id], finish=finish, cached=None if at else cached))  # type: ignore[arg-type]


def _shared(one: "array[int]", other: "array[int]") -> int:
    same = next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    return same // 4 * 4


class FullAfterFirstSink:
    """A sink that is full after its first delta."""

    def __init__(self) -> None:
        self.deltas: list[TokenDelta] = []
        self.waits = 0

    def push(self, delta: TokenDelta) -> bool:
        self.deltas.append(delta)
        return len(self.deltas) > 1

    async def drain(self) -> bool:
        self.waits += 1
        return True


def test_scripted_engine_outputs_the_script_and_primes_the_cache(tmp_path: Path) -> None:
    real, first, second = Real(), FullAfterFirstSink(), FullAfterFirstSink()
    output = list(range(100, 140))
    script = {("s", 0): output, ("s", 1): [50, 51]}
    whole = array("I", [*range(10), *output, 1, 2])
    with Notebook(tmp_path) as notebook:
        scripted_engine = ScriptedOutputEngine(
            real, lambda session, at: script.get((session, at)), notebook
        )
        for prompt, listener in ((array("I", range(10)), first), (whole, second)):
            asyncio.run(
                scripted_engine.generate(EngineRequest("r", prompt, 99, session="s"), listener)
            )
    assert [id for delta in first.deltas for id in delta.ids] == output
    assert [delta.finish for delta in first.deltas if delta.finish] == ["stop"]
    assert first.deltas[-1].finish == "stop"
    assert first.waits == 1
    assert [one.max_tokens for one in real.requests] == [1, PRIMING] * 2
    assert list(real.requests[1].prompt) == [*range(10), *output]
    assert second.deltas[0].cached == 48
    assert [id for delta in second.deltas for id in delta.ids] == [50, 51]
    notes = read_notes(tmp_path)
    assert [(note.kind, note.response, note.length, note.cached) for note in notes] == [
        ("acted", 0, 10, 0),
        ("prime", 0, 50, 8),
        ("acted", 1, 52, 48),
        ("prime", 1, 54, 52),
    ]
    assert read_prompt(tmp_path, notes[2]) == whole


def test_unscripted_sessions_use_the_engine(tmp_path: Path) -> None:
    real, sink = Real(), FullAfterFirstSink()
    with Notebook(tmp_path) as notebook:
        scripted_engine = ScriptedOutputEngine(real, lambda session, at: None, notebook)
        asyncio.run(scripted_engine.generate(EngineRequest("r", array("I", [1, 2]), 3), sink))
    assert [delta.ids for delta in sink.deltas] == [[7], [7], [7]]
    assert [note.kind for note in read_notes(tmp_path)] == ["real"]


def test_script_follows_the_session(tokenizer: Tokenizer) -> None:
    script = make_script(["D-0"], tokenizer)
    first, last, beyond = (script(claude.session_id("D-0"), at) for at in range(3))
    assert first is not None
    assert last is not None
    assert first[-1] == last[-1] == tokenizer.controls[END]
    assert len(first) > len(last)
    assert beyond == last
    assert script(claude.session_id("D-1"), 0) is None


def measure(number: int, ms: float, length: int = 100, cached: int = 64) -> Measure:
    note = Note("acted", "s", 0, 0, length, 1, {}, [], cached, first_ms=ms - 3.0, begun=2.002)
    return Measure(2.0, ms, note, number)


def test_row_splits_the_time() -> None:
    measures = [measure(3, 10.0), measure(5, 30.0), measure(9, 11.0, length=120)]
    figures = row("A", "stable", measures, {3: Alone(8.0, 64)})
    assert figures["prefilled_tokens"] == [36, 36, 56]
    assert figures["median"]["client_ms"] == 11.0
    assert (figures["median"]["before_ms"], figures["median"]["after_ms"]) == (2.0, 1.0)
    assert figures["alone_ms"] == []
    assert figures["median"]["alone_ms"] is None
    alone = {number: Alone(8.0, 64) for number in (3, 5, 9)}
    figures = row("A", "stable", measures, alone)
    assert figures["alone_prefilled"] == [36, 36, 56]
    assert figures["median"]["alone_ms"] == 8.0


def test_ledger_savings_are_summed_over_turns() -> None:
    on = turns_row("on", [[measure(0, 10.0), measure(1, 20.0)], [measure(2, 12.0), measure(3, 20)]])
    off = turns_row("off", [[measure(0, 10.0), measure(1, 50.0, length=500)]])
    assert [turn["client_ms"] for turn in on["turns"]] == [11.0, 20.0]
    assert on["turns"][0]["all"]["client_ms"] == [10.0, 12.0]
    assert saved(on, off) == {"prefilled_tokens": 400, "client_ms": 29.0}


def test_rates_are_compared_with_the_engine_alone() -> None:
    rows = [rate_row("alone", 8, [(100, 1.0), (300, 1.0), (200, 1.0)])]
    rows += [rate_row("chat", 8, [(190, 1.0)]), rate_row("chat", 64, [(1, 1.0)])]
    assert ratios(rows) == [{"streams": 8, "via": "chat", "ratio": 0.95}]


def test_stream_is_measured_from_its_first_word() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    start = b'{"type":"content_block_start","content_block":{"type":"text","text":""}}'
    word = b'{"delta":{"type":"text_delta","text":"Hm"}}'
    end = b'{"type":"message_delta","usage":{"output_tokens":5}}'
    parts = [head, *(b"%x\r\n%b\r\n" % (len(f), f) for f in map(_frame, (start, word, end)))]
    seen = Seen(0, 0, [10, 20, 30, 40], [len(part) for part in parts], [], b"".join(parts))
    assert rates.first_token(seen) == 30
    tokens, seconds = rates.measured([seen])
    assert (tokens, round(seconds * 1e9)) == (5, 10)


def _frame(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def test_page_size_is_derived_from_cache_hits() -> None:
    assert page_of([192, 128, 2560]) == 64
    assert page_of([]) is None


def test_results_stay_until_they_are_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    Results(path, 0.0).put("A", {"rows": [1]})
    later = Results(path, 0.0)
    later.put("B", {"rows": [2]})
    later.put("A", {"rows": [3]})
    found = json.loads(path.read_text())["experiments"]
    assert found == {"A": {"rows": [3]}, "B": {"rows": [2]}}


@pytest.mark.long
@pytest.mark.transformers
@pytest.mark.timeout(600)
def test_short_run_shows_prefilled_tokens(tokenizer: Tokenizer, tmp_path: Path) -> None:
    if not PYTHON:
        pytest.skip("DOVETAIL_TORCH_PYTHON names no interpreter with torch: make test-vllm")
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path), "--cpu", "--quick"]
    done = subprocess.run(
        [*command, "--python", PYTHON], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    rows = {name: found["experiments"][name]["rows"][0] for name in CASES}
    prefilled = {name: one["median"]["prefilled_tokens"] for name, one in rows.items()}
    page = found["machine"]["page"]
    assert prefilled["A"] == pytest.approx(prefilled["C"], abs=2)
    assert prefilled["B"] > 10 * prefilled["C"]
    assert prefilled["D"] == pytest.approx(prefilled["F"], abs=page)
    assert prefilled["E"] > prefilled["D"] + REASONING_TOKENS
    assert prefilled["F2"] > prefilled["F"] + page
    assert all(one["alone_prefilled"] == one["prefilled_tokens"] for one in rows.values())
    on, off = found["experiments"]["G"]["rows"]
    assert len(on["turns"]) == STEPS
    assert on["total"]["prefilled_tokens"] < off["total"]["prefilled_tokens"]
    assert found["experiments"]["G"]["saved"]["prefilled_tokens"] > 0
    pairs = {(one["via"], one["streams"]) for one in found["experiments"]["I"]["rows"]}
    assert pairs == {(via, n) for via in ("messages", "chat", "alone") for n in (1, 4)}
    assert all(sum(one["tokens"]) > 0 for one in found["experiments"]["I"]["rows"])
