"""The timeline of a stream and the dispatch of its calls are measured as they happen."""

import asyncio
import json
from pathlib import Path

import pytest
from benchmarks.frontend.client import Seen
from benchmarks.frontend.requests import APIS
from benchmarks.gpu import paced_server
from benchmarks.gpu.arrivals import arrivals
from benchmarks.gpu.dispatch import CALLS, dispatch
from benchmarks.gpu.paced_server import ScriptedOutput, author
from benchmarks.gpu.timed_engine import Note, create, read_notes
from benchmarks.gpu.timeline import CALL_TOKENS, EVENTS, REASONING_TOKENS, timeline

from dovetail.engines.registry import EngineSetup, EngineSetupError
from dovetail_tokenizers import ByteTokenizer

FAST = 0.001  # seconds per token
qwen3 = pytest.mark.skipif(
    not paced_server.QWEN3.is_dir(), reason="no tokenizer at hand: make tokenizers"
)


@pytest.mark.long
@qwen3
def test_events_are_ordered_and_follow_their_tokens() -> None:
    found = asyncio.run(timeline(1, FAST))
    rows = {row["event"]: row for row in found["rows"]}
    assert list(rows) == list(EVENTS)
    at = {name: row["ms"][0] for name, row in rows.items()}
    order = ["thinking starts", "last thinking delta", "thinking block ends"]
    order += ["first argument bytes", "last argument bytes"]
    times = [at[name] for name in order]
    assert times == sorted(set(times)), "each of them in a write of its own"
    assert at["last argument bytes"] <= at["dispatch"] < at["message ends"]
    assert at["call's block ends"] <= at["dispatch"]
    for name, row in rows.items():
        assert row["behind_ms"][0] > 0, name


@pytest.mark.long
@qwen3
def test_every_call_is_dispatched_in_every_api_before_the_turn_ends() -> None:
    found = asyncio.run(dispatch(4, FAST, streams=(2,)))
    assert [row["api"] for row in found["rows"]] == list(APIS)
    for row in found["rows"]:
        assert (row["streams"], row["calls"], len(row["lead_ms"])) == (2, 4, 2)
        assert min(row["dispatch_ms"]) > 0
        assert min(row["lead_ms"]) > 0


@qwen3
def test_mark_is_the_token_that_triggers_the_event() -> None:
    tokenizer = author()
    output = ScriptedOutput(tokenizer)
    output.think(REASONING_TOKENS)
    for name in CALLS:
        output.call(name, CALL_TOKENS)
    output.text(5)
    output.end()
    marks = output.marks
    assert marks["reasoning closed"] - marks["reasoning"] == REASONING_TOKENS
    assert marks["first complete"] - marks["reasoning closed"] == CALL_TOKENS
    decoded = {name: tokenizer.decode(output.ids[: at + 1]) for name, at in marks.items()}
    assert decoded["reasoning"] == "<think>\n The"
    assert decoded["reasoning closed"].endswith("\n</think>")
    assert decoded["first opened"].endswith("<parameter=content>\n")
    assert decoded["second complete"].endswith("</parameter>\n</function>\n")
    assert decoded["end"].endswith("<|im_end|>")
    with pytest.raises(ValueError, match="a call needs more than"):
        output.call("short", 20)


def test_event_arrives_with_the_last_byte_of_its_chunk() -> None:
    first = b'event: a\ndata: {"n": 1}\n\n'
    second = b'data: {"type": "b"}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    parts = [head + b"%x\r\n" % len(first) + first[:9], first[9:] + b"\r\n"]
    parts += [b"%x\r\n" % len(second) + second + b"\r\n", b"0\r\n\r\n"]
    seen = Seen(0, 5, [10, 20, 30, 40], [len(part) for part in parts], [], b"".join(parts))
    found = [(one.at, one.name, one.data) for one in arrivals(seen)]
    assert found == [(20, "a", {"n": 1}), (30, "b", {"type": "b"}), (30, "", {})]


def test_event_in_two_chunks_arrives_with_the_second() -> None:
    parts = [b"HTTP/1.1 200 OK\r\n\r\n8\r\ndata: {}\r\n", b"2\r\n\n\n\r\n"]
    seen = Seen(0, 0, [10, 20], [len(part) for part in parts], [], b"".join(parts))
    assert [one.at for one in arrivals(seen)] == [20]


def test_error_response_is_not_a_stream() -> None:
    raw = b"HTTP/1.1 400 Bad Request\r\n\r\nno"
    with pytest.raises(ValueError, match="400 Bad Request"):
        arrivals(Seen(0, 0, [1], [len(raw)], [], raw))


def test_timed_engine_requires_a_notes_file(tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text("Hello.", "utf-8")
    setup = EngineSetup(ByteTokenizer(["<|end|>"]), options={"script": str(script)})
    with pytest.raises(EngineSetupError, match="notes=FILE"):
        create(setup)


def test_notes_are_in_order_of_response_ends(tmp_path: Path) -> None:
    notes = tmp_path / "notes.jsonl"
    assert read_notes(notes) == []
    notes.write_text(json.dumps({"prompt": "a", "left": [1, 2]}) + "\n", "utf-8")
    assert read_notes(notes) == [Note("a", [1, 2])]
