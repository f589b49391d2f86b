"""Engines behind the step protocol, in this process and in a child process."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from scripted_fixture import engine as create_scripted

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenEngine,
    TokenSink,
)
from dovetail.engines.process import ProcessSpec
from dovetail.engines.scripted import ScriptedEngine
from dovetail.engines.steps.client import StepAddress, StepClient, connect
from dovetail.engines.steps.engine import ChildEngine
from dovetail.engines.steps.messages import EngineDescription, describe_engine
from dovetail.engines.steps.process import CHILD_SCRIPT, StepProcess, package_folders
from dovetail.engines.steps.server import StepServer
from dovetail_tokenizers import Tokenizer

KEY = "key of the tests"


@asynccontextmanager
async def served(
    engine: TokenEngine, folder: Path, tokenizer: Tokenizer | None = None
) -> AsyncIterator[StepClient]:
    """Serve an engine on a unix socket and yield a connected client."""
    async with served_at(engine, folder) as address:
        client = await connect(address, "the engine", tokenizer)
        try:
            yield client
        finally:
            client.close("the test has ended")


@asynccontextmanager
async def served_at(engine: TokenEngine, folder: Path) -> AsyncIterator[StepAddress]:
    listener = socket.socket(socket.AF_UNIX)
    path = folder / "steps.sock"
    listener.bind(str(path))
    listener.listen()
    description = describe_engine(engine.name, engine.capabilities, facts={"version": "1"})
    server = await StepServer(engine, description, KEY).serve(listener)
    try:
        yield StepAddress(KEY, str(path))
    finally:
        server.close()


def import_path() -> str:
    """Return the value of PYTHONPATH with which an interpreter finds Dovetail's packages."""
    folders = [str(Path(folder).parent) for folder in package_folders().values()]
    return os.pathsep.join(dict.fromkeys(folders))


class CollectingSink:
    """Records deltas. It reports that it is full as often as `full` requests."""

    def __init__(self, full: int = 0) -> None:
        self.deltas: list[TokenDelta] = []
        self.drains = 0
        self._full = full

    @property
    def ids(self) -> list[int]:
        return [id for delta in self.deltas for id in delta.ids]

    def push(self, delta: TokenDelta) -> bool:
        self.deltas.append(delta)
        self._full -= 1
        return self._full < 0

    async def drain(self) -> bool:
        self.drains += 1
        await asyncio.sleep(0.01)
        return True


class SteppedEngine:
    """Pushes one token to every stream per call of `step`, in one pass of the event loop.

    `aborted`: the ids of the requests that were cancelled.
    """

    name = "stepped"
    capabilities = EngineCapabilities(context_length=1000, logprobs=True, cached_tokens=True)

    def __init__(self) -> None:
        self.sinks: dict[str, TokenSink] = {}
        self.requests: dict[str, EngineRequest] = {}
        self.aborted: list[str] = []
        self._ends: dict[str, asyncio.Future[None]] = {}

    async def start(self) -> None:
        """Be ready at once."""

    async def stop(self) -> None:
        """Have nothing to release."""

    async def health(self) -> EngineHealth:
        return EngineHealth(True, "", {"running": len(self.sinks)})

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        self.sinks[request.id], self.requests[request.id] = sink, request
        self._ends[request.id] = asyncio.get_running_loop().create_future()
        try:
            await self._ends[request.id]
        except asyncio.CancelledError:
            self.aborted.append(request.id)
            raise
        finally:
            del self.sinks[request.id]

    def step(self, token: int, *, last: bool = False) -> None:
        for id, sink in self.sinks.items():
            sink.push(TokenDelta([token], (), "length" if last else None))
            if last:
                self._ends[id].set_result(None)

    def fail(self, id: str, error: Exception) -> None:
        self._ends[id].set_exception(error)

    async def wait_for(self, count: int) -> None:
        """Wait until this many streams have arrived."""
        while len(self.sinks) != count:  # noqa: ASYNC110 - messages of another task change it
            await asyncio.sleep(0.001)


class ChildScriptedEngine(ScriptedEngine):
    """The scripted engine in a child process, which describes itself."""

    def describe(self) -> EngineDescription:
        return describe_engine(
            self.name, self.capabilities, model="scripted", facts={"pid": os.getpid()}
        )


def load(config: Mapping[str, Any]) -> ScriptedEngine:
    """Create the engine in the child process. See `child_main`."""
    if "fail" in config:
        raise ValueError(config["fail"])
    scripted = create_scripted(config.get("script") or config["arguments"]["script"])
    scripted.__class__ = ChildScriptedEngine
    return scripted


def child_engine(config: Mapping[str, Any], tokenizer: Tokenizer | None = None) -> ChildEngine:
    """Create a scripted engine in a child process. `config` has the script, or why it fails."""
    support = Path(__file__).parent
    spec = ProcessSpec(
        name="scripted",
        command=(sys.executable, "-P", str(CHILD_SCRIPT)),
        environment={"PYTHONPATH": str(support)},
        start_timeout=60.0,
    )
    return ChildEngine("scripted", partial(StepProcess, spec, "step_fixture"), config, tokenizer)
