"""An engine that prefills for real and outputs scripted tokens.

For a request of a known session the real engine prefills the prompt and generates one token. At
that moment the sink gets the scripted ids instead. Then the engine prefills prompt and ids, so
that its cache is as if it had generated them. A note is written for each request, with its time to
first token as measured here.
"""

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenEngine,
    TokenSink,
)

#: The ids of a session's output, by the session's name and the number of the response.
Script = Callable[[str, int], Sequence[int] | None]
OPENING = 4  # tokens that are pushed with the first one: enough for visible text
STEP = 16
#: The engine caches a page in the step after the one that filled it, so that step is required.
PRIMING = 2


class Note(msgspec.Struct):
    """One request to the real engine. `prompt` and `length` locate its ids in the other file.

    `kind` is `acted`, `prime`, or `real` where the engine's own tokens were used.
    """

    kind: str
    session: str | None
    response: int
    prompt: int
    length: int
    max_tokens: int
    sampling: dict[str, Any]
    stop_ids: list[int]
    cached: int = 0
    first_ms: float = 0.0
    begun: float = 0.0  # seconds of the monotonic clock, which all processes share


class Notebook:
    """Writes notes as lines of JSON, and the ids of their prompts to a second file."""

    def __init__(self, folder: Path) -> None:
        self._notes = (folder / "notes.jsonl").open("ab")
        self._ids = (folder / "prompts.bin").open("ab")

    def place(self, prompt: "array[int]") -> int:
        """Append ids and return their position in the file."""
        at = self._ids.tell() // 4
        self._ids.write(array("I", prompt).tobytes())
        return at

    def write(self, note: Note) -> None:
        self._ids.flush()
        self._notes.write(msgspec.json.encode(note) + b"\n")
        self._notes.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *fault: object) -> None:
        self._notes.close()
        self._ids.close()


def read_notes(folder: Path) -> list[Note]:
    """Return all notes so far."""
    file = folder / "notes.jsonl"
    lines = file.read_bytes().splitlines() if file.is_file() else []
    return [msgspec.json.decode(line, type=Note) for line in lines]


def read_prompt(folder: Path, note: Note) -> "array[int]":
    """Read the prompt ids of a note."""
    with (folder / "prompts.bin").open("rb") as file:
        file.seek(4 * note.prompt)
        return array("I", file.read(4 * note.length))


@dataclass
class FirstTokenSink:
    """Records the time of the real engine's first token, and the cached tokens."""

    begun: float = 0.0
    first_ms: float | None = None
    cached: int = 0

    def note(self, delta: TokenDelta) -> None:
        if self.first_ms is None:
            self.first_ms = (time.perf_counter() - self.begun) * 1000
        if delta.cached is not None:
            self.cached = delta.cached


class PassThroughSink(FirstTokenSink):
    """Forwards the engine's own tokens."""

    def __init__(self, listener: TokenSink) -> None:
        super().__init__()
        self._listener = listener

    def push(self, delta: TokenDelta) -> bool:
        if self.first_ms is None or delta.cached is not None:
            self.note(delta)
        return self._listener.push(delta)

    async def drain(self) -> bool:
        return await self._listener.drain()


class OpeningSink(FirstTokenSink):
    """Pushes the beginning of the scripted output when the engine emits its first token."""

    def __init__(self, listener: TokenSink, opening: list[int]) -> None:
        super().__init__()
        self._listener = listener
        self._opening = opening
        self.room = True

    def push(self, delta: TokenDelta) -> bool:
        first = self.first_ms is None
        self.note(delta)
        if first:
            cached = delta.cached or 0
            self.room = self._listener.push(TokenDelta(self._opening, cached=cached))
        return True

    async def drain(self) -> bool:
        return True


class SilentSink(FirstTokenSink):
    """Discards the tokens."""

    def push(self, delta: TokenDelta) -> bool:
        self.note(delta)
        return True

    async def drain(self) -> bool:
        return True


class ScriptedOutputEngine:
    """The scripted engine. Sessions that are not in the script get the real engine's tokens."""

    def __init__(self, engine: TokenEngine, script: Script, notebook: Notebook) -> None:
        self.name = engine.name
        self._engine = engine
        self._script = script
        self._notebook = notebook
        self._responses: Counter[str] = Counter()

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._engine.capabilities

    async def start(self) -> None:
        await self._engine.start()

    async def stop(self) -> None:
        await self._engine.stop()

    async def health(self) -> EngineHealth:
        return await self._engine.health()

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        session = request.session or ""
        number = self._responses[session]
        ids = self._script(session, number)
        if ids is None:
            await self._generate("real", request, PassThroughSink(sink), number)
            return
        self._responses[session] += 1
        first_token_request = msgspec.structs.replace(request, max_tokens=1)
        cue = OpeningSink(sink, list(ids[:OPENING]))
        await self._generate("acted", first_token_request, cue, number)
        await _push_rest(sink, ids[OPENING:], cue.room)
        whole = request.prompt + array("I", ids)
        prime = msgspec.structs.replace(request, prompt=whole, max_tokens=PRIMING)
        await self._generate("prime", prime, SilentSink(), number)

    async def _generate(
        self,
        kind: str,
        request: EngineRequest,
        sink: PassThroughSink | OpeningSink | SilentSink,
        number: int,
    ) -> None:
        note = Note(
            kind=kind,
            session=request.session,
            response=number,
            prompt=self._notebook.place(request.prompt),
            length=len(request.prompt),
            max_tokens=request.max_tokens,
            sampling=msgspec.to_builtins(request.sampling),
            stop_ids=sorted(request.stop_ids),
        )
        sink.begun = time.perf_counter()
        await self._engine.generate(request, sink)
        note.cached, note.first_ms, note.begun = sink.cached, sink.first_ms or 0.0, sink.begun
        self._notebook.write(note)


async def _push_rest(listener: TokenSink, ids: Sequence[int], room: bool) -> None:
    """Push the rest of an output, as fast as the sink accepts it."""
    for piece, last in _pieces(ids):
        if not room and not await listener.drain():
            return
        room = listener.push(TokenDelta(piece, finish="stop" if last else None))


def _pieces(ids: Sequence[int]) -> Iterator[tuple[list[int], bool]]:
    for at in range(0, len(ids), STEP):
        yield list(ids[at : at + STEP]), at + STEP >= len(ids)
