"""A child process that an engine runs in: started, listened to, ended.

In goes one line of JSON on its stdin, what to serve; out comes one line of JSON on its stdout, the
`address` where it listens or an `error`. Whatever it prints on stderr is its log. The end of its
stdin is the child's order to end, so that it never outlives its parent.
"""

import asyncio
import logging
import os
import shutil
import signal
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from dovetail_model import EngineUnavailable

LOG = logging.getLogger(__name__)
LAST_BREATH = 1.0  # seconds that a process may take to be gone after its line broke
LOG_LINES = 60  # kept to tell why it failed
LONGEST_LINE = 1 << 20  # bytes
LONGEST_SOCKET = 100  # bytes; systems allow 104 to 108
GRACE = 10.0  # seconds to end by itself
LOOK = 0.02  # seconds between two looks at one that ends
LAST_WORDS = 1.0  # seconds for the log of a process that has ended
LONGEST_QUOTE = 200


@dataclass(frozen=True)
class Launch:
    """How a child is started. `name` is what errors call it.

    It has `patience` seconds to become ready; `logs` passes on what it says.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] | None = None
    patience: float = 600.0
    logs: bool = False


class ChildProcess:
    """One running child. A process is not started twice."""

    __slots__ = ("_child", "_launch", "_pump", "_ready", "log")

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._child: asyncio.subprocess.Process | None = None
        self._pump: asyncio.Task[None] | None = None
        self._ready = False
        self.log: deque[str] = deque(maxlen=LOG_LINES)

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.returncode is None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    async def start(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """What the child answers, once it is ready or has an `error` to tell.

        Raises `EngineUnavailable` if it cannot be run or is not ready in time. An answer without an
        `address` is the last word of a child that has ended.
        """
        try:
            answer = await self._ask(wanted)
            self._ready = "address" in answer
            if not self._ready:
                await self._wait_for_end()
        except BaseException:
            await self.stop()
            raise
        return answer

    async def stop(self) -> None:
        """Ends the process and waits for it. May be called at any time, and twice."""
        child = self._child
        if child is not None and child.stdin is not None:
            child.stdin.close()
            # While it loads a model it may hear nothing.
            if not await self.ended(GRACE if self._ready else 0.0):
                with suppress(ProcessLookupError):
                    child.kill()
                await self.ended(GRACE)
        await self._hear_out()

    async def ended(self, patience: float) -> bool:
        """Whether the process ends within so many seconds.

        Looked at, because asyncio's own `wait` also waits for all who have its pipes open.
        """
        for _ in range(round(patience / LOOK)):
            if not self.alive:
                return True
            await asyncio.sleep(LOOK)
        return not self.alive

    def epitaph(self) -> str:
        """How the process ended, in words."""
        code = self._child.returncode if self._child is not None else None
        name = self._launch.name
        if code is None:
            return f"{name} does not answer"
        if code == -signal.SIGKILL:
            return f"{name} was killed, perhaps because memory ran out"
        return f"{name} died with signal {-code}" if code < 0 else f"{name} ended ({code})"

    async def _ask(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        launch = self._launch
        try:
            async with asyncio.timeout(launch.patience):
                child = await self._spawn()
                assert child.stdin is not None
                assert child.stdout is not None
                child.stdin.write(msgspec.json.encode(wanted) + b"\n")
                line = await child.stdout.readline()
        except TimeoutError as fault:
            limit = f"{launch.patience:g} s"
            raise EngineUnavailable(f"{launch.name} was not ready in {limit}") from fault
        except ConnectionError:
            return {}
        except ValueError:  # a line beyond all measure
            line = b"\0"
        return self._read(line) if line else {}

    async def _spawn(self) -> asyncio.subprocess.Process:
        launch = self._launch
        added = launch.environment
        try:
            self._child = child = await asyncio.create_subprocess_exec(
                *launch.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LONGEST_LINE,
                env={**os.environ, **added} if added else None,
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        except OSError as fault:
            reason = fault.strerror or type(fault).__name__
            program = launch.command[0]
            raise EngineUnavailable(f"{launch.name}: cannot run {program} ({reason})") from fault
        assert child.stderr is not None
        self._pump = asyncio.create_task(self._listen(child.stderr))
        return child

    def _read(self, line: bytes) -> dict[str, Any]:
        try:
            return msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as fault:
            said = line.decode("utf-8", "replace").strip()[:LONGEST_QUOTE]
            raise EngineUnavailable(
                f"{self._launch.name} said what is not understood: {said!r}"
            ) from fault

    async def _wait_for_end(self) -> None:
        """Lets a child that has said its last word end, and hears the whole log."""
        assert self._child is not None
        if not await self.ended(GRACE):
            with suppress(ProcessLookupError):
                self._child.kill()
            await self.ended(GRACE)
        await self._hear_out()

    async def _hear_out(self) -> None:
        """The rest of what it said. Who still has its pipes is a helper that it left behind."""
        child, pump = self._child, self._pump
        if child is None or child.stdout is None or pump is None:
            return
        rest = asyncio.gather(pump, child.stdout.read(), return_exceptions=True)
        done, _ = await asyncio.wait({rest}, timeout=LAST_WORDS)
        if not done:
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            await asyncio.wait({rest}, timeout=LAST_WORDS)
            rest.cancel()

    async def _listen(self, log: asyncio.StreamReader) -> None:
        """Reads the log, so that the child never waits for a reader."""
        while True:
            try:
                line = await log.readline()
            except ValueError:  # beyond all measure: what is left of it is read as lines
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()
            self.log.append(text)
            if self._launch.logs:
                LOG.info("%s: %s", self._launch.name, text)


class PrivateSocket:
    """A unix socket in a folder that only this user can enter."""

    __slots__ = ("_folder",)

    def __init__(self) -> None:
        self._folder: str | None = None

    def make(self, name: str) -> str | None:
        """The path for it; None where there are no unix sockets, or none with so long a path."""
        if os.name != "posix":
            return None
        self._folder = tempfile.mkdtemp(prefix="dovetail-")
        path = f"{self._folder}/{name}"
        return path if len(os.fsencode(path)) <= LONGEST_SOCKET else None

    def remove(self) -> None:
        """Takes the folder away. May be called twice."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


class EngineProcess:
    """A child with a socket of its own. Each engine starts its child in its own words."""

    __slots__ = ("_child", "_socket")

    def __init__(self, launch: Launch) -> None:
        self._socket = PrivateSocket()
        self._child = ChildProcess(launch)

    @property
    def alive(self) -> bool:
        return self._child.alive

    @property
    def pid(self) -> int | None:
        return self._child.pid

    async def stop(self) -> None:
        """Ends the process and waits for it. May be called at any time, and twice."""
        await self._child.stop()
        self._socket.remove()

    def epitaph(self) -> str:
        """How the process ended, in words."""
        return self._child.epitaph()

    async def explain(self, fault: EngineUnavailable) -> NoReturn:
        """Raises what is to be told of a broken line: it is often the first sign of a death."""
        if await self._child.ended(LAST_BREATH):
            raise EngineUnavailable(self.epitaph()) from fault
        raise fault
