"""Who hears an engine's deltas: an answer that goes out as they come, or one in one piece."""

from collections.abc import Sequence
from typing import Protocol

from dovetail.engines.completion_server.response import (
    ChoiceBuilder,
    CompletionResponseChoice,
    StreamEncoder,
)
from dovetail.engines.engine import TokenDelta, TokenSink
from dovetail.net.exchange import ByteSink


class BatchTokenSink(TokenSink, Protocol):
    """A listener that also takes what is due together."""

    def push_all(self, deltas: Sequence[TokenDelta]) -> bool: ...


class StreamSink:
    """Writes a frame in the very call that brings a delta."""

    __slots__ = ("_drain", "_encode", "_write")

    def __init__(self, byte_sink: ByteSink, encoder: StreamEncoder) -> None:
        self._encode = encoder.encode
        self._write = byte_sink.write
        self._drain = byte_sink.drain

    def push(self, delta: TokenDelta) -> bool:
        """Runs for every token."""
        return self._write(self._encode(delta))

    def push_all(self, deltas: Sequence[TokenDelta]) -> bool:
        return self._write(b"".join([self._encode(delta) for delta in deltas]))

    async def drain(self) -> bool:
        await self._drain()
        return True


class CollectingSink:
    """Keeps what the deltas add."""

    __slots__ = ("_builder", "choices")

    def __init__(self, builder: ChoiceBuilder) -> None:
        self._builder = builder
        self.choices: list[CompletionResponseChoice] = []

    def push(self, delta: TokenDelta) -> bool:
        self.choices.append(self._builder.build(delta))
        return True

    def push_all(self, deltas: Sequence[TokenDelta]) -> bool:
        self.choices += [self._builder.build(delta) for delta in deltas]
        return True

    async def drain(self) -> bool:
        return True
