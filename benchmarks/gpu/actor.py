"""An engine whose answers are acted: what it reads is read for real, what it says is written down.

For a request of a known session the real engine reads the prompt and generates one token. At that
moment the listener is told the written ids instead. Then the engine is made to read prompt and ids,
so that its cache is as if it had said them. Every request is noted, with the time to its first
token as it is seen from here.
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

#: The ids of a session's answer, by the session's name and the number of the answer.
Script = Callable[[str, int], Sequence[int] | None]
OPENING = 4  # tokens that are told with the first one: enough for words to show
STEP = 16
#: Pages are kept in the step after the one that filled them, so there has to be such a step.
PRIMING = 2


class Note(msgspec.Struct):
    """One request to the real engine. `prompt` and `length` are its ids' place in the other file.

    `kind` is `acted`, `prime`, or `real` where the engine's own tokens were told.
    """

    kind: str
    session: str | None
    answer: int
    prompt: int
    length: int
    max_tokens: int
    sampling: dict[str, Any]
    stop_ids: list[int]
    cached: int = 0
    first_ms: float = 0.0
    begun: float = 0.0  # seconds of the monotonic clock, which all processes share


class Notebook:
    """Notes as lines of JSON, the ids of their prompts in a file beside them."""

    def __init__(self, folder: Path) -> None:
        self._notes = (folder / "notes.jsonl").open("ab")
        self._ids = (folder / "prompts.bin").open("ab")

    def place(self, prompt: "array[int]") -> int:
        """Where the ids lie now."""
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
    """All notes so far."""
    file = folder / "notes.jsonl"
    lines = file.read_bytes().splitlines() if file.is_file() else []
    return [msgspec.json.decode(line, type=Note) for line in lines]


def read_prompt(folder: Path, note: Note) -> "array[int]":
    """The ids that a note was made of."""
    with (folder / "prompts.bin").open("rb") as file:
        file.seek(4 * note.prompt)
        return array("I", file.read(4 * note.length))


@dataclass
class Hearing:
    """What is heard of the real engine: when its first token came, and what was cached."""

    begun: float = 0.0
    first_ms: float | None = None
    cached: int = 0

    def note(self, delta: TokenDelta) -> None:
        if self.first_ms is None:
            self.first_ms = (time.perf_counter() - self.begun) * 1000
        if delta.cached is not None:
            self.cached = delta.cached


class Through(Hearing):
    """Passes on what it hears."""

    def __init__(self, listener: TokenSink) -> None:
        super().__init__()
        self._listener = listener

    def push(self, delta: TokenDelta) -> bool:
        if self.first_ms is None or delta.cached is not None:
            self.note(delta)
        return self._listener.push(delta)

    async def drain(self) -> bool:
        return await self._listener.drain()


class Cue(Hearing):
    """Tells the first words of an answer at the moment in which the engine has its first token."""

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


class Silent(Hearing):
    """Tells nobody."""

    def push(self, delta: TokenDelta) -> bool:
        self.note(delta)
        return True

    async def drain(self) -> bool:
        return True


class Actor:
    """The engine. Sessions that are not in the script hear the real one."""

    def __init__(self, engine: TokenEngine, script: Script, notebook: Notebook) -> None:
        self.name = engine.name
        self._engine = engine
        self._script = script
        self._notebook = notebook
        self._answers: Counter[str] = Counter()

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
        number = self._answers[session]
        ids = self._script(session, number)
        if ids is None:
            await self._ask("real", request, Through(sink), number)
            return
        self._answers[session] += 1
        asked = msgspec.structs.replace(request, max_tokens=1)
        cue = Cue(sink, list(ids[:OPENING]))
        await self._ask("acted", asked, cue, number)
        await _tell(sink, ids[OPENING:], cue.room)
        said = request.prompt + array("I", ids)
        prime = msgspec.structs.replace(request, prompt=said, max_tokens=PRIMING)
        await self._ask("prime", prime, Silent(), number)

    async def _ask(
        self, kind: str, request: EngineRequest, ear: Through | Cue | Silent, number: int
    ) -> None:
        note = Note(
            kind=kind,
            session=request.session,
            answer=number,
            prompt=self._notebook.place(request.prompt),
            length=len(request.prompt),
            max_tokens=request.max_tokens,
            sampling=msgspec.to_builtins(request.sampling),
            stop_ids=sorted(request.stop_ids),
        )
        ear.begun = time.perf_counter()
        await self._engine.generate(request, ear)
        note.cached, note.first_ms, note.begun = ear.cached, ear.first_ms or 0.0, ear.begun
        self._notebook.write(note)


async def _tell(listener: TokenSink, ids: Sequence[int], room: bool) -> None:
    """The rest of an answer, as fast as it is wanted."""
    for piece, last in _pieces(ids):
        if not room and not await listener.drain():
            return
        room = listener.push(TokenDelta(piece, finish="stop" if last else None))


def _pieces(ids: Sequence[int]) -> Iterator[tuple[list[int], bool]]:
    for at in range(0, len(ids), STEP):
        yield list(ids[at : at + STEP]), at + STEP >= len(ids)
