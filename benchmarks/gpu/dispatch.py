"""H: time until a client has a complete call while the model continues to generate."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.frontend.requests import APIS
from benchmarks.gpu.arrivals import DISPATCH, Arrival, arrivals
from benchmarks.gpu.paced_server import (
    QWEN3,
    MeasuredStream,
    Pace,
    PacedServer,
    ScriptedOutput,
    author,
    run_paced_server,
)

PACE = 0.007  # seconds per token
STREAMS = (1, 16)
REASONING_TOKENS, CALL_TOKENS, TEXT_TOKENS = 12, 28, 20  # tokens
CALLS = ("first", "second")
WARM_UP = 1  # responses per stream that are not counted

#: The last event of a stream.
_LAST = {"messages": "message_stop", "responses": "response.completed", "chat": ""}


async def dispatch(
    calls: int,
    pace: float = PACE,
    tokenizer: Path = QWEN3,
    streams: Sequence[int] = STREAMS,
) -> dict[str, Any]:
    """Measure the time from each call's last token to the client, and to the turn's end."""
    output = _script_output(tokenizer)
    async with run_paced_server(output.ids, Pace(between=pace, in_step=True), tokenizer) as server:
        rows = [
            await _row(server, output, api, at_once, calls) for api in APIS for at_once in streams
        ]
    return {
        "title": "a call's last token to its dispatch frame at the client",
        "pace_ms": pace * 1e3,
        "warm_up": WARM_UP,
        "tokens": {
            "thought": REASONING_TOKENS,
            "call": CALL_TOKENS,
            "text": TEXT_TOKENS,
            "in all": len(output.ids),
        },
        "rows": rows,
    }


def _script_output(tokenizer: Path) -> ScriptedOutput:
    """Return an output that continues after its first call: another call, and text."""
    output = ScriptedOutput(author(tokenizer))
    output.think(REASONING_TOKENS)
    for name in CALLS:
        output.call(name, CALL_TOKENS)
    output.text(TEXT_TOKENS)
    output.end()
    return output


async def _row(
    server: PacedServer, output: ScriptedOutput, api: str, streams: int, calls: int
) -> dict[str, Any]:
    turns = ceil(calls / (len(CALLS) * streams))
    measured = await server.play(api, streams, WARM_UP + turns)
    counted = [stream for at, stream in enumerate(measured) if at % (WARM_UP + turns) >= WARM_UP]
    late: list[float] = []
    leads: list[float] = []
    for stream in counted:
        came = arrivals(stream.seen)
        frames = [one for one in came if one.name == DISPATCH]
        over = _end(api, came)
        late += _late(stream, frames, output)
        leads.append(round((over - frames[0].at) / 1e6, 3))
    return {
        "api": api,
        "streams": streams,
        "calls": len(late),
        "dispatch_ms": late,
        "lead_ms": leads,
    }


def _late(stream: MeasuredStream, frames: Sequence[Arrival], output: ScriptedOutput) -> list[float]:
    left = [stream.left[output.marks[f"{name} complete"]] for name in CALLS]
    return [round((one.at - ns) / 1e6, 3) for one, ns in zip(frames, left, strict=True)]


def _end(api: str, came: Sequence[Arrival]) -> int:
    """Return when the turn ended. The last frame of Chat Completions has no JSON."""
    last = came[-1]
    if last.name != _LAST[api] or (api == "chat" and last.data):
        raise ValueError(f"the stream ends with {last.name or last.data!r}")
    return last.at
