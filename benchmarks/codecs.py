"""What does it cost to decode a request and to encode a delta, in each API?"""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.measure import quiet
from benchmarks.report import Result, table
from dovetail_model import (
    CallArgs,
    CallOpen,
    Event,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from dovetail_protocols import CHAT, MESSAGES, RESPONSES, Codec, DecodeCache

INTRO = """\
Decoding of a request of about 200 KB, a long conversation with tools; and microseconds per encoded
delta, with one encoder call per delta, the best of several rounds.
"""
GROWN = """\
### Grown conversations

Milliseconds to decode a request that is one turn longer than the previous one, with a `DecodeCache`
that holds the previous one; the same request without a cache; and a bare scan of its JSON, which
only finds where values end.
"""
LIMIT = 3.0  # microseconds per delta, the target; reported, not asserted
ROUNDS = 15
DELTAS = 2_000
TURNS = 90
GROWN_TURNS = (25, 50, 100, 200)  # 80 000 tokens are about 320 KB: 100 turns with long results
LONG = 2
TEXT = "The quick brown fox jumps over the lazy dog, é 漢字. " * 20
CODECS: dict[str, Codec] = {"messages": MESSAGES, "responses": RESPONSES, "chat": CHAT}


def run() -> Result:
    rows: list[list[str]] = []
    slow: list[str] = []
    for name, codec in CODECS.items():
        body = msgspec.json.encode(_request(name))
        reading = _best(lambda codec=codec, body=body: codec.decode(body, {}))  # type: ignore[misc]
        costs = [_per_delta(codec, body, first, delta) for first, delta in _SCRIPTS]
        slow += [name for cost in costs if cost > LIMIT]
        rows.append([name, f"{len(body) / 1000:.0f}", f"{reading / 1e6:.2f}"])
        rows[-1] += [f"{cost:.2f}" for cost in costs]
        print(f"  {name:<10}", *rows[-1][1:])
    head = ("API", "body, KB", "decode, ms", "text, µs", "reasoning, µs", "arguments, µs")
    verdict = f"over {LIMIT:.0f} µs: {', '.join(slow)}" if slow else f"all under {LIMIT:.0f} µs"
    reading_text = f"Deltas: {verdict}.\n"
    numbers = f"{INTRO}\n{table(head, rows)}\n{GROWN}\n{_grown()}"
    return Result("codecs", "Requests and deltas", numbers, reading_text)


def _grown() -> str:
    rows: list[list[str]] = []
    for name, codec in CODECS.items():
        for turns in GROWN_TURNS:
            before, body = (
                msgspec.json.encode(_request(name, n, LONG)) for n in (turns - 1, turns)
            )
            grown = _growing(codec, before, body)
            whole = _best(lambda codec=codec, body=body: codec.decode(body, {}))  # type: ignore[misc]
            scan = _best(lambda body=body: msgspec.json.decode(body, type=msgspec.Raw))  # type: ignore[misc]
            costs = [f"{cost / 1e6:.2f}" for cost in (grown, whole, scan)]
            rows.append([name, f"{len(body) / 1000:.0f}", *costs, f"{whole / grown:.1f}"])
            print(f"  {name:<10} grown", *rows[-1][1:])
    head = ("API", "body, KB", "grown, ms", "without cache, ms", "scan, ms", "ratio")
    return table(head, rows)


def _growing(codec: Codec, before: bytes, body: bytes) -> int:
    """Measure with a fresh cache per round: new content must be new in each round."""
    memories = [DecodeCache() for _ in range(ROUNDS)]
    for memory in memories:
        codec.decode(before, {}, memory)
    each = iter(memories)
    return _best(lambda: codec.decode(body, {}, next(each)))


_SCRIPTS: list[tuple[list[Event], Event]] = [
    ([Usage(5)], TextDelta("word and")),
    ([Usage(5)], ReasoningDelta("word and")),
    ([Usage(5), CallOpen(0, "f", id="call_1")], CallArgs(0, 'word "a"')),
]


def _per_delta(codec: Codec, body: bytes, first: list[Event], delta: Event) -> float:
    request = codec.decode(body, {})

    def write() -> None:
        encoder = codec.stream(request, lambda prefix: prefix + "1", lambda: 0.0)
        encoder.encode(first)
        for _ in range(DELTAS):
            encoder.encode([delta])

    return _best(write) / 1000 / DELTAS


def _best(what: Callable[[], object]) -> int:
    """Return the nanoseconds of CPU time, the best of several rounds."""
    spent: list[int] = []
    with quiet():
        for _ in range(ROUNDS):
            begun = time.process_time_ns()
            what()
            spent.append(time.process_time_ns() - begun)
    return min(spent)


def _request(api: str, turns: int = TURNS, long: int = 1) -> dict[str, Any]:
    """Return a conversation with this many turns; `long` is the length of tool results."""
    schema = {"type": "object", "properties": {"path": {"type": "string", "description": TEXT}}}
    shared: dict[str, Any] = {"model": "some-org/some-model", "stream": True}
    if api == "messages":
        tools = [{"name": f"t{i}", "description": TEXT, "input_schema": schema} for i in range(20)]
        messages = [message for i in range(turns) for message in _messages(i, TEXT * long)]
        return {**shared, "max_tokens": 9, "system": TEXT, "messages": messages, "tools": tools}
    if api == "responses":
        tools = [{"type": "function", **_function(i, schema)} for i in range(20)]
        items = [item for i in range(turns) for item in _items(i, TEXT * long)]
        return {**shared, "instructions": TEXT, "input": items, "tools": tools}
    tools = [{"type": "function", "function": _function(i, schema)} for i in range(20)]
    chat = [message for i in range(turns) for message in _chat(i, TEXT * long)]
    return {**shared, "messages": [{"role": "system", "content": TEXT}, *chat], "tools": tools}


def _function(number: int, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"t{number}", "description": TEXT, "parameters": schema}


def _messages(i: int, given: str) -> list[dict[str, Any]]:
    use = {"type": "tool_use", "id": f"toolu_{i}", "name": "t1", "input": {"path": f"a{i}.py"}}
    thinking = {"type": "thinking", "thinking": TEXT[:200], "signature": "c2VhbA"}
    result = {"type": "tool_result", "tool_use_id": f"toolu_{i}", "content": given}
    return [
        {"role": "assistant", "content": [thinking, use]},
        {"role": "user", "content": [result]},
    ]


def _items(i: int, given: str) -> list[dict[str, Any]]:
    call = {"type": "function_call", "call_id": f"call_{i}", "name": "t1"}
    return [
        {"type": "reasoning", "summary": [], "encrypted_content": TEXT[:200]},
        {**call, "arguments": f'{{"path": "a{i}.py"}}'},
        {"type": "function_call_output", "call_id": f"call_{i}", "output": given},
    ]


def _chat(i: int, given: str) -> list[dict[str, Any]]:
    function = {"name": "t1", "arguments": f'{{"path": "a{i}.py"}}'}
    call = {"id": f"call_{i}", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "reasoning_content": TEXT[:200]}
    return [
        {**message, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{i}", "content": given},
    ]
