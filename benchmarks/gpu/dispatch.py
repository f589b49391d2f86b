"""H: how soon a client has a whole call in its hands, while the model goes on talking."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.frontend.requests import APIS
from benchmarks.gpu.arrivals import DISPATCH, Arrival, arrivals
from benchmarks.gpu.paced import QWEN3, Answer, Heard, Pace, Stage, author, staged

PACE = 0.007  # seconds a token
STREAMS = (1, 16)
THOUGHT, CALL, TEXT = 12, 28, 20  # tokens
CALLS = ("first", "second")
WARM_UP = 1  # answers of every stream

#: The event after which nothing comes.
_LAST = {"messages": "message_stop", "responses": "response.completed", "chat": ""}


async def dispatch(
    calls: int,
    pace: float = PACE,
    tokenizer: Path = QWEN3,
    streams: Sequence[int] = STREAMS,
) -> dict[str, Any]:
    """Every call's time from its last token to the client, and its lead over the turn's end."""
    answer = _answer(tokenizer)
    async with staged(answer.ids, Pace(between=pace, in_step=True), tokenizer) as stage:
        rows = [
            await _row(stage, answer, api, at_once, calls) for api in APIS for at_once in streams
        ]
    return {
        "title": "a call's last token to its dispatch frame at the client",
        "pace_ms": pace * 1e3,
        "warm_up": WARM_UP,
        "tokens": {"thought": THOUGHT, "call": CALL, "text": TEXT, "in all": len(answer.ids)},
        "rows": rows,
    }


def _answer(tokenizer: Path) -> Answer:
    """After its first call it goes on: another one, and some text."""
    answer = Answer(author(tokenizer))
    answer.think(THOUGHT)
    for name in CALLS:
        answer.call(name, CALL)
    answer.say(TEXT)
    answer.end()
    return answer


async def _row(stage: Stage, answer: Answer, api: str, streams: int, calls: int) -> dict[str, Any]:
    turns = ceil(calls / (len(CALLS) * streams))
    played = await stage.play(api, streams, WARM_UP + turns)
    counted = [heard for at, heard in enumerate(played) if at % (WARM_UP + turns) >= WARM_UP]
    late: list[float] = []
    leads: list[float] = []
    for heard in counted:
        came = arrivals(heard.seen)
        frames = [one for one in came if one.name == DISPATCH]
        over = _end(api, came)
        late += _late(heard, frames, answer)
        leads.append(round((over - frames[0].at) / 1e6, 3))
    return {
        "api": api,
        "streams": streams,
        "calls": len(late),
        "dispatch_ms": late,
        "lead_ms": leads,
    }


def _late(heard: Heard, frames: Sequence[Arrival], answer: Answer) -> list[float]:
    left = [heard.left[answer.marks[f"{name} complete"]] for name in CALLS]
    return [round((one.at - ns) / 1e6, 3) for one, ns in zip(frames, left, strict=True)]


def _end(api: str, came: Sequence[Arrival]) -> int:
    """When the turn was over for the client. The last frame of Chat Completions has no JSON."""
    last = came[-1]
    if last.name != _LAST[api] or (api == "chat" and last.data):
        raise ValueError(f"the stream ends with {last.name or last.data!r}")
    return last.at
