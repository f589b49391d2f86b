"""Who hears an engine's deltas: an answer that goes out as they come, or one in one piece."""

from collections.abc import Sequence
from typing import Protocol

from dovetail.engines.completion_server.response import Choice, Frames, Writer
from dovetail.engines.engine import Listener, TokenDelta
from dovetail.net.direct import ByteSink


class Ear(Listener, Protocol):
    """A listener that also takes what is due together."""

    def hear_all(self, deltas: Sequence[TokenDelta]) -> bool: ...


class Stream:
    """Writes a frame in the very call that brings a delta."""

    __slots__ = ("_drain", "_frame", "_write")

    def __init__(self, outlet: ByteSink, frames: Frames) -> None:
        self._frame = frames.frame
        self._write = outlet.write
        self._drain = outlet.drain

    def hear(self, delta: TokenDelta) -> bool:
        """Runs for every token."""
        return self._write(self._frame(delta))

    def hear_all(self, deltas: Sequence[TokenDelta]) -> bool:
        return self._write(b"".join([self._frame(delta) for delta in deltas]))

    async def wait(self) -> bool:
        await self._drain()
        return True


class Whole:
    """Keeps what the deltas add."""

    __slots__ = ("_writer", "choices")

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.choices: list[Choice] = []

    def hear(self, delta: TokenDelta) -> bool:
        self.choices.append(self._writer.choice(delta))
        return True

    def hear_all(self, deltas: Sequence[TokenDelta]) -> bool:
        self.choices += [self._writer.choice(delta) for delta in deltas]
        return True

    async def wait(self) -> bool:
        return True
