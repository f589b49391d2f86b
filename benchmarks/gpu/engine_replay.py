"""Replay the requests that a server sent, in the same order, to the engine without a server.

Run with the interpreter that has torch. It reads a command as one line of JSON on stdin, and writes
one line of JSON per request or group. The cache is empty at the start, so that it goes through the
same states as behind the server.
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

from benchmarks.gpu.process_commands import Group, Replay
from benchmarks.gpu.scripted_engine import Note, SilentSink, read_notes, read_prompt
from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.transformers.child.engine import BatchingEngine, create_batching_engine
from dovetail.engines.transformers.child.loader import load_model
from dovetail.engines.transformers.options import TransformersOptions
from dovetail.net.listener import freeze_gc
from dovetail_model import Sampling


class Counting:
    """Counts the tokens of an output, and records the times of the first and the last."""

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
    """Create the engine as its own process does, without the server."""
    options = msgspec.convert(order.options, TransformersOptions, strict=False)
    folder = Path(order.model)
    loaded = load_model(folder, options)
    return create_batching_engine(folder, loaded, options, loaded.context_length)[0]


async def run(order: Replay) -> None:
    """Replay the notes in order; those of a group together."""
    folder = Path(order.folder)
    notes = read_notes(folder)
    engine = load_engine(order)
    await engine.start()
    freeze_gc()
    try:
        for at, group in _in_turn(order.groups, len(notes)):
            if group is None:
                _print_json({"note": at, **await _first(engine, _request(folder, notes[at]))})
            elif group.replayed:
                requests = [_request(folder, note) for note in notes[at : group.end]]
                _print_json({"group": group.label, **await _rate(engine, requests)})
    finally:
        await engine.stop()


async def _first(engine: BatchingEngine, request: EngineRequest) -> dict[str, Any]:
    sink = SilentSink(begun=time.perf_counter())
    await engine.generate(request, sink)
    return {"first_ms": sink.first_ms, "cached": sink.cached}


async def _rate(engine: BatchingEngine, requests: list[EngineRequest]) -> dict[str, Any]:
    sinks = [Counting() for _ in requests]
    await asyncio.gather(*map(engine.generate, requests, sinks))
    seconds = max(sink.last for sink in sinks) - min(sink.first for sink in sinks)
    return {"tokens": sum(sink.tokens for sink in sinks), "seconds": seconds}


def _in_turn(groups: list[Group], count: int) -> Iterator[tuple[int, Group | None]]:
    """Yield all notes in order, one by one or as groups."""
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


def _print_json(message: dict[str, Any]) -> None:
    print(json.dumps(message), file=sys.__stdout__, flush=True)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Replay)
    with redirect_stdout(sys.stderr):  # libraries print, too
        asyncio.run(run(order))


if __name__ == "__main__":
    main()
