"""Fuzz every codec with mutated requests: the result must be a response or a client error.

Each request is a golden request with values replaced, dropped, nested or repeated. For requests
that decode, a response stream is encoded from a short list of events.
"""

import argparse
import copy
import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    DovetailError,
    Event,
    Finish,
    ReasoningDelta,
    SpanEnd,
    TextDelta,
    Usage,
    fold,
)
from dovetail_protocols import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Codec

FOLDER = Path(__file__).parents[1] / "packages" / "protocols" / "tests" / "transcripts"
CODECS: dict[str, Codec] = {
    "messages": MESSAGES,
    "responses": RESPONSES,
    "chat": CHAT,
    "completions": COMPLETIONS,
}
SCRIPT: list[Event] = [
    Usage(3),
    ReasoningDelta("hm"),
    SpanEnd("reasoning", seal="s"),
    CallOpen(0, "get_weather", id="call_1"),
    CallArgs(0, "{}"),
    CallClose(0),
    TextDelta("ok"),
    SpanEnd("text"),
    Usage(3, 4),
    Finish("stop"),
]
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 10**30, "", "x", "\ud800", "auto", [], {}, [[]], [{}], {"a": {}},
    {"type": "text"}, {"type": "tool_use"}, {"type": 5}, ["x", None], {"role": "assistant"},
)  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Yield every container in the value with each of its keys or positions."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        node = todo.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            found.append((node, key))
            if isinstance(node[key], dict | list):
                todo.append(node[key])
    return found


def mutate(dice: random.Random, request: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(request)
    for _ in range(dice.randint(1, 4)):
        spots = places(changed)
        if not spots:
            break
        node, key = dice.choice(spots)
        match dice.randrange(4):
            case 0:
                node[key] = copy.deepcopy(dice.choice(ODD))
            case 1:
                del node[key]
            case 2:
                node[key] = [node[key]] if dice.random() < 0.5 else {"type": node[key]}
            case _:
                other, at = dice.choice(spots)
                node[key] = copy.deepcopy(other[at]) if at in _keys(other) else None
    return changed


def _keys(node: Any) -> Any:
    return node if isinstance(node, dict) else range(len(node))


def check(codec: Codec, body: bytes) -> None:
    try:
        request = codec.decode(body, {})
    except DovetailError as error:
        response = codec.encode_error(error)
        assert 400 <= response.status < 500, "a fault of the request is the client's"
        msgspec.json.decode(response.body)
        return
    encoder = codec.stream(request, lambda prefix: prefix + "1", lambda: 0.0)
    assert encoder.encode(SCRIPT)
    whole = codec.encode_message(request, [fold(SCRIPT)], lambda prefix: prefix + "1", lambda: 0.0)
    msgspec.json.decode(whole)


def run(seed: int, count: int) -> int:
    dice = random.Random(seed)
    corpus = {
        name: [msgspec.json.decode(path.read_bytes()) for path in FOLDER.glob(f"*/{name}.req*")]
        for name in CODECS
    }
    corpus["completions"] = [{"model": "m", "prompt": "Once", "max_tokens": 5, "stream": True}]
    for number in range(count):
        name = list(CODECS)[number % len(CODECS)]
        request = mutate(dice, dice.choice(corpus[name]))
        try:
            body = msgspec.json.encode(request)
        except UnicodeEncodeError:
            continue
        try:
            check(CODECS[name], body)
        except Exception as error:
            raise RuntimeError(f"{name}: {error!r} (seed {seed}) on {body!r}") from error
    return count


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    chosen = options.parse_args()
    print(f"fuzzing {chosen.requests} requests over {len(CODECS)} codecs, seed {chosen.seed}")
    parts = max(chosen.processes, chosen.requests // 5_000)
    share = -(-chosen.requests // parts)
    with ProcessPoolExecutor(chosen.processes) as pool:
        done = sum(pool.map(run, range(chosen.seed, chosen.seed + parts), [share] * parts))
    print(f"{done} requests: a response or a client error for each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
