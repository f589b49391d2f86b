"""The embedded vLLM, with a record of the ids that it gets and returns.

It is an engine of its own for `dovetail serve --engine recording_embedded:create`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dovetail.engines.engine import EngineRequest, TokenDelta, TokenSink
from dovetail.engines.registry import EngineSetup
from dovetail.engines.steps.messages import join_deltas
from dovetail.engines.vllm.embedded import EmbeddedVllmEngine, create_embedded

RECORD_VARIABLE = "RECORDED_GENERATIONS"


class RecordedGeneration(msgspec.Struct, frozen=True):
    """One request with the ids that vLLM returned for it."""

    session: str | None
    prompt: list[int]
    generated: list[int]
    cached: int | None
    finish: str | None
    constrained: bool


def read_generations(path: Path, session: str) -> list[RecordedGeneration]:
    """Return the generations of a session, in the order in which they ended."""
    lines = path.read_bytes().splitlines()
    found = [msgspec.json.decode(line, type=RecordedGeneration) for line in lines]
    return [one for one in found if one.session == session]


@dataclass
class _RecordingSink:
    sink: TokenSink
    deltas: list[TokenDelta]

    def push(self, delta: TokenDelta) -> bool:
        self.deltas.append(delta)
        return self.sink.push(delta)

    async def drain(self) -> bool:
        return await self.sink.drain()


class RecordingEngine(EmbeddedVllmEngine):
    """Appends each generation that ends to the file that the environment names."""

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        recording = _RecordingSink(sink, [])
        await super().generate(request, recording)
        self._record(request, recording.deltas)

    def _record(self, request: EngineRequest, deltas: Sequence[TokenDelta]) -> None:
        whole = join_deltas(deltas)
        record = RecordedGeneration(
            request.session,
            request.prompt.tolist(),
            whole.ids,
            whole.cached,
            whole.finish,
            request.constraint is not None,
        )
        with Path(os.environ[RECORD_VARIABLE]).open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")


def create(setup: EngineSetup) -> EmbeddedVllmEngine:
    engine = create_embedded(setup)
    engine.__class__ = RecordingEngine
    return engine
