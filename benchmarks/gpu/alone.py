"""The engine without a server: the requests that a server sent, once more, in the same order.

Run with the interpreter that has torch. An order comes in as one line of JSON on stdin; out comes a
line of JSON for each request or group. Nothing was read before, so that the cache goes through the
same states as it did behind the server.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.gpu.actor import Note, Silent, read_notes, read_prompt
from benchmarks.gpu.orders import Group, Replay
from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.transformers.child.engine import BatchingEngine, create_batching_engine
from dovetail.engines.transformers.child.loader import load_model
from dovetail.engines.transformers.options import TransformersOptions
from dovetail.net.listener import freeze_gc
from dovetail_model import Sampling


class Counting:
    """Hears an answer: how many tokens, and when the first and the last came."""

    def __init__(self) -> None:
        self.tokens = 0
        self.first = self.last = 0.0

    def push(self, delta: TokenDelta) -> bool:
        self.last = time.perf_counter()
        if not self.tokens:
            self.first = self.last
        self.tokens += len(delta.ids)
        return True

    async def drain(self) -> bool:
        return True


def load_engine(order: Replay) -> BatchingEngine:
    """The engine as its own process makes it, without that process's server."""
    options = msgspec.convert(order.options, TransformersOptions, strict=False)
    folder = Path(order.model)
    loaded = load_model(folder, options)
    return create_batching_engine(folder, loaded, options, loaded.context_length)[0]


async def run(order: Replay) -> None:
    """Every note in its turn; those of a group together."""
    folder = Path(order.folder)
    notes = read_notes(folder)
    engine = load_engine(order)
    await engine.start()
    freeze_gc()
    try:
        for at, group in _in_turn(order.groups, len(notes)):
            if group is None:
                _tell({"note": at, **await _first(engine, _request(folder, notes[at]))})
            elif group.played:
                requests = [_request(folder, note) for note in notes[at : group.end]]
                _tell({"group": group.label, **await _rate(engine, requests)})
    finally:
        await engine.stop()


async def _first(engine: BatchingEngine, request: EngineRequest) -> dict[str, Any]:
    ear = Silent(begun=time.perf_counter())
    await engine.generate(request, ear)
    return {"first_ms": ear.first_ms, "cached": ear.cached}


async def _rate(engine: BatchingEngine, requests: list[EngineRequest]) -> dict[str, Any]:
    ears = [Counting() for _ in requests]
    await asyncio.gather(*map(engine.generate, requests, ears))
    seconds = max(ear.last for ear in ears) - min(ear.first for ear in ears)
    return {"tokens": sum(ear.tokens for ear in ears), "seconds": seconds}


def _in_turn(groups: list[Group], count: int) -> Iterator[tuple[int, Group | None]]:
    """All notes from the first to the last, one by one or as groups."""
    at, by_start = 0, {group.start: group for group in groups}
    while at < count:
        group = by_start.get(at)
        yield at, group
        at = at + 1 if group is None else group.end


def _request(folder: Path, note: Note) -> EngineRequest:
    return EngineRequest(
        "alone",
        read_prompt(folder, note),
        note.max_tokens,
        sampling=msgspec.convert(note.sampling, Sampling),
        stop_ids=frozenset(note.stop_ids),
    )


def _tell(said: dict[str, Any]) -> None:
    print(json.dumps(said), file=sys.__stdout__, flush=True)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Replay)
    with redirect_stdout(sys.stderr):  # libraries print, too
        asyncio.run(run(order))


if __name__ == "__main__":
    main()
