"""T: two parsers on one stream, and when each of its events arrives at the client.

`python -m benchmarks.gpu.timeline` measures T and H (`dispatch.py`). Neither needs a GPU: there is
no model. The script is as long as the published timeline implies at 7 ms per token.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.arrivals import DISPATCH, Arrival, arrivals
from benchmarks.gpu.dispatch import dispatch
from benchmarks.gpu.machine import machine
from benchmarks.gpu.paced_server import (
    PARSERS,
    QWEN3,
    MeasuredStream,
    Pace,
    ScriptedOutput,
    author,
    run_paced_server,
)

PACE = 0.007  # seconds per token
FIRST_WORD = 0.082  # seconds until the engine emits the first word of the reasoning
REASONING_TOKENS = 74  # tokens, from the first word to the closing marker
CALL_TOKENS = 28  # tokens, from there to the one that completes the call
WARM_UP = 1

#: The events of the timeline, and the token that triggers each.
EVENTS = {
    "thinking starts": "reasoning",
    "last thinking delta": "reasoning ended",
    "thinking block ends": "reasoning closed",
    "first argument bytes": "call opened",
    "last argument bytes": "call complete",
    "call's block ends": "call complete",
    "dispatch": "call complete",
    "message ends": "end",
}

Test = Callable[[Arrival], bool]


async def timeline(rounds: int, pace: float = PACE, tokenizer: Path = QWEN3) -> dict[str, Any]:
    """Measure the milliseconds since the request, for each event and round."""
    output = _script_output(tokenizer)
    first = max(0.0, FIRST_WORD - output.marks["reasoning"] * PACE)
    async with run_paced_server(output.ids, Pace(first, pace), tokenizer) as server:
        streams = await server.play("messages", 1, WARM_UP + rounds)
    return {
        "title": f"two parsers on one stream ({PARSERS[1]} and {PARSERS[3]}), /v1/messages",
        "pace_ms": pace * 1e3,
        "rounds": rounds,
        "warm_up": WARM_UP,
        "tokens": {"thought": REASONING_TOKENS, "call": CALL_TOKENS, "in all": len(output.ids)},
        "rows": _rows(streams[WARM_UP:], output.marks),
    }


def events(came: Sequence[Arrival]) -> dict[str, Arrival]:
    """Select the events of the timeline from a stream."""
    thinking = _index(came, "thinking")
    call = _index(came, "tool_use")
    reasoning_deltas = [one for one in came if _is_delta(one, "thinking_delta")]
    arguments = [one for one in came if _is_delta(one, "input_json_delta")]
    return {
        "thinking starts": _one(came, lambda one: _is(one, "content_block_start", thinking)),
        "last thinking delta": reasoning_deltas[-1],
        "thinking block ends": _one(came, lambda one: _is(one, "content_block_stop", thinking)),
        "first argument bytes": arguments[0],
        "last argument bytes": arguments[-1],
        "call's block ends": _one(came, lambda one: _is(one, "content_block_stop", call)),
        "dispatch": _one(came, lambda one: one.name == DISPATCH),
        "message ends": _one(came, lambda one: one.name == "message_stop"),
    }


def _script_output(tokenizer: Path) -> ScriptedOutput:
    output = ScriptedOutput(author(tokenizer))
    output.think(REASONING_TOKENS)
    output.call("call", CALL_TOKENS)
    output.end()
    return output


def _rows(streams: Sequence[MeasuredStream], marks: dict[str, int]) -> list[dict[str, Any]]:
    came = [events(arrivals(stream.seen)) for stream in streams]
    rows = []
    for name, mark in EVENTS.items():
        at = [one[name].at for one in came]
        left = [stream.left[marks[mark]] for stream in streams]
        sent = [stream.seen.sent for stream in streams]
        numbers = {
            "ms": _ms(at, sent),
            "engine_ms": _ms(left, sent),
            "behind_ms": _ms(at, left),
        }
        medians = {key: median(values) for key, values in numbers.items()}
        rows.append({"event": name, "token": mark, **numbers, "median": medians})
    return rows


def _ms(ends: Sequence[int], starts: Sequence[int]) -> list[float]:
    return [round((b - a) / 1e6, 3) for a, b in zip(starts, ends, strict=True)]


def _index(came: Sequence[Arrival], kind: str) -> int:
    """Return the index of the only block of a kind."""
    starts = [one for one in came if one.name == "content_block_start"]
    (start,) = [one for one in starts if one.data["content_block"]["type"] == kind]
    index: int = start.data["index"]
    return index


def _is(one: Arrival, name: str, index: int) -> bool:
    return one.name == name and one.data["index"] == index


def _is_delta(one: Arrival, kind: str) -> bool:
    return one.name == "content_block_delta" and one.data["delta"]["type"] == kind


def _one(came: Sequence[Arrival], wanted: Test) -> Arrival:
    (found,) = filter(wanted, came)
    return found


async def _measure(rounds: int, calls: int, tokenizer: Path) -> dict[str, Any]:
    experiments = {
        "T": await timeline(rounds, tokenizer=tokenizer),
        "H": await dispatch(calls, tokenizer=tokenizer),
    }
    return {"machine": machine({}, "none: the scripted engine", None), "experiments": experiments}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file for the results, as JSON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--calls", type=int, default=50, help="minimum number of calls per row of H"
    )
    parser.add_argument("--tokenizer", type=Path, default=QWEN3, help="folder of Qwen3's tokenizer")
    given = parser.parse_args()
    found = asyncio.run(_measure(given.rounds, given.calls, given.tokenizer))
    given.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
