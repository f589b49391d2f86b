"""An engine behind the step protocol that outputs scripted token ids at the script's pace.

`create` runs in Dovetail, `load` in the child process. Streams in step are advanced by one timer
per pace, as an engine decodes a batch; others have a pace of their own. Tokens are counted in a
file that the benchmark also maps.
"""

import asyncio
import json
import mmap
import sys
from collections.abc import Mapping
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenSink,
)
from dovetail.engines.process import ProcessSpec
from dovetail.engines.registry import EngineSetup
from dovetail.engines.steps.engine import ChildEngine
from dovetail.engines.steps.messages import EngineDescription, describe_engine
from dovetail.engines.steps.process import CHILD_SCRIPT, StepProcess

ROOT = Path(__file__).resolve().parents[2]
MODULE = "benchmarks.frontend.step_engine"


def create(setup: EngineSetup) -> ChildEngine:
    """Create the engine. Its options are the paths of the script and of the counter."""
    spec = ProcessSpec(
        name="the scripted engine",
        command=(sys.executable, "-P", str(CHILD_SCRIPT)),
        environment={"PYTHONPATH": str(ROOT)},
    )
    return ChildEngine(
        "steps", partial(StepProcess, spec, MODULE), dict(setup.options), setup.tokenizer
    )


def load(config: Mapping[str, Any]) -> "StepPlayer":
    """Create the engine in the child process."""
    return StepPlayer(Path(config["script"]), Path(config["counter"]))


class _Stream:
    """The rest of an output, and its sink."""

    __slots__ = ("_at", "_ids", "_push", "over")

    def __init__(self, ids: list[int], sink: TokenSink) -> None:
        self._ids = ids
        self._at = 0
        self._push = sink.push
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def advance(self) -> bool:
        """Push the next token. Return whether more follow."""
        at = self._at
        self._at = at + 1
        if self._at < len(self._ids):
            self._push(TokenDelta([self._ids[at]]))
            return True
        self._push(TokenDelta([self._ids[at]], (), "stop"))
        if not self.over.done():
            self.over.set_result(None)
        return False


class StepPlayer:
    """Outputs the parts of a script."""

    name = "steps"
    capabilities = EngineCapabilities(context_length=200_000, cached_tokens=True)

    def __init__(self, script: Path, counter: Path) -> None:
        self._parts = json.loads(script.read_bytes())
        for part in self._parts:
            part["marker"] = _spelled(part["marker"])
        with counter.open("r+b") as file:
            self._counted = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
        self._in_step: dict[float, dict[_Stream, None]] = {}
        self._timers: dict[float, asyncio.Task[None]] = {}

    def describe(self) -> EngineDescription:
        return describe_engine(self.name, self.capabilities)

    async def start(self) -> None:
        """Be ready at once."""

    async def stop(self) -> None:
        """Have nothing to release."""

    async def health(self) -> EngineHealth:
        return EngineHealth(True)

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        spelled = _spelled(request.prompt)
        parts = self._parts
        part = next((one for one in parts if one["marker"] in spelled), parts[0])
        stream = _Stream(part["ids"][: request.max_tokens], sink)
        if part["in_step"]:
            await self._run_in_step(stream, part["rate"])
        else:
            await self._run_alone(stream, part["rate"])

    async def _run_in_step(self, stream: _Stream, rate: float) -> None:
        streams = self._in_step.setdefault(rate, {})
        streams[stream] = None
        if rate not in self._timers or self._timers[rate].done():
            self._timers[rate] = asyncio.create_task(self._advance_all(streams, rate))
        try:
            await stream.over
        finally:
            streams.pop(stream, None)

    async def _advance_all(self, streams: dict[_Stream, None], rate: float) -> None:
        clock = asyncio.get_running_loop().time
        due = ceil(clock() * rate) / rate
        while streams:
            await asyncio.sleep(max(0.0, due - clock()))
            due += 1 / rate
            for stream in list(streams):
                self._counted[0] += 1
                if not stream.advance():
                    del streams[stream]

    async def _run_alone(self, stream: _Stream, rate: float) -> None:
        clock = asyncio.get_running_loop().time
        begun, sent = clock(), 0
        while not stream.over.done():
            wait = sent / rate - (clock() - begun) if rate else 0.0
            if wait > 0 or not rate:
                await asyncio.sleep(wait)
            self._counted[0] += 1
            sent += 1
            stream.advance()


def _spelled(ids: Any) -> str:
    return f",{','.join(map(str, ids))},"
