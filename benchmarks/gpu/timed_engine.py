"""The scripted engine with the time at which each delta left it, to measure delays against.

The server loads it by its path, `--engine benchmarks.gpu.timed_engine:create`, with the options of
the scripted engine and one more, `notes`: a file with a line of JSON for every response. Times
are nanoseconds of the monotonic clock, which all processes of a machine share.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from dovetail.engines import scripted
from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenSink,
)
from dovetail.engines.registry import EngineSetup, EngineSetupError
from dovetail_tokenizers import Tokenizer

ENGINE = f"{__name__}:create"
_TAIL = 64  # tokens at the end of a prompt, which hold the last user message


class Note(msgspec.Struct, frozen=True):
    """One response: the end of its prompt, which identifies it, and when its deltas left."""

    prompt: str
    left: list[int]


def create(setup: EngineSetup) -> "TimedEngine":
    """Create the engine for the registry."""
    options = dict(setup.options)
    notes = options.pop("notes", None)
    if notes is None:
        raise EngineSetupError("`notes` is required: --engine-option notes=FILE")
    engine = scripted.create(replace(setup, options=options))
    return TimedEngine(engine, setup.tokenizer, Path(notes))


def read_notes(path: Path) -> list[Note]:
    """Read the notes so far, in the order in which responses ended."""
    lines = path.read_bytes().splitlines() if path.is_file() else []
    return [msgspec.json.decode(line, type=Note) for line in lines]


@dataclass(frozen=True)
class TimedEngine:
    """A scripted engine that records when deltas leave."""

    engine: scripted.ScriptedEngine
    tokenizer: Tokenizer
    notes: Path
    name: str = "noted"

    @property
    def capabilities(self) -> EngineCapabilities:
        return self.engine.capabilities

    async def start(self) -> None:
        await self.engine.start()

    async def stop(self) -> None:
        await self.engine.stop()

    async def health(self) -> EngineHealth:
        return await self.engine.health()

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Generate, and write a note at the end."""
        timed = _TimedSink(sink)
        try:
            await self.engine.generate(request, timed)
        finally:
            self._write(request.prompt[-_TAIL:], timed.left)

    def _write(self, tail: Sequence[int], left: list[int]) -> None:
        note = Note(self.tokenizer.decode(list(tail)), left)
        with self.notes.open("ab") as file:
            file.write(msgspec.json.encode(note) + b"\n")


class _TimedSink:
    """Forwards deltas and records their times."""

    __slots__ = ("_listener", "left")

    def __init__(self, sink: TokenSink) -> None:
        self._listener = sink
        self.left: list[int] = []

    def push(self, delta: TokenDelta) -> bool:
        self.left.append(time.monotonic_ns())
        return self._listener.push(delta)

    async def drain(self) -> bool:
        return await self._listener.drain()
