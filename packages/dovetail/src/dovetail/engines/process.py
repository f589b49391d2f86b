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
EXIT_DETECTION_SECONDS = 1.0  # seconds that a process may take to be gone after its line broke
MAX_LOG_LINES = 60  # kept to tell why it failed
MAX_LINE_BYTES = 1 << 20  # bytes
MAX_SOCKET_PATH_BYTES = 100  # bytes; systems allow 104 to 108
STOP_TIMEOUT_SECONDS = 10.0  # seconds to end by itself
EXIT_POLL_SECONDS = 0.02  # seconds between two looks at one that ends
LOG_DRAIN_SECONDS = 1.0  # seconds for the log of a process that has ended
MAX_QUOTE_CHARS = 200


@dataclass(frozen=True)
class ProcessSpec:
    """How a child is started. `name` is what errors call it.

    It has `patience` seconds to become ready; `logs` passes on what it says.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] | None = None
    start_timeout: float = 600.0
    forward_logs: bool = False


class ChildProcess:
    """One running child. A process is not started twice."""

    __slots__ = ("_child", "_log_task", "_ready", "_spec", "log")

    def __init__(self, spec: ProcessSpec) -> None:
        self._spec = spec
        self._child: asyncio.subprocess.Process | None = None
        self._log_task: asyncio.Task[None] | None = None
        self._ready = False
        self.log: deque[str] = deque(maxlen=MAX_LOG_LINES)

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.returncode is None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    async def start(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What the child answers, once it is ready or has an `error` to tell.

        Raises `EngineUnavailable` if it cannot be run or is not ready in time. An answer without an
        `address` is the last word of a child that has ended.
        """
        try:
            answer = await self._handshake(config)
            self._ready = "address" in answer
            if not self._ready:
                await self._reap()
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
            if not await self.wait_for_exit(STOP_TIMEOUT_SECONDS if self._ready else 0.0):
                with suppress(ProcessLookupError):
                    child.kill()
                await self.wait_for_exit(STOP_TIMEOUT_SECONDS)
        await self._drain_output()

    async def wait_for_exit(self, timeout_seconds: float) -> bool:
        """Whether the process ends within so many seconds.

        Looked at, because asyncio's own `wait` also waits for all who have its pipes open.
        """
        for _ in range(round(timeout_seconds / EXIT_POLL_SECONDS)):
            if not self.alive:
                return True
            await asyncio.sleep(EXIT_POLL_SECONDS)
        return not self.alive

    def describe_exit(self) -> str:
        """How the process ended, in words."""
        code = self._child.returncode if self._child is not None else None
        name = self._spec.name
        if code is None:
            return f"{name} does not answer"
        if code == -signal.SIGKILL:
            return f"{name} was killed, perhaps because memory ran out"
        return f"{name} died with signal {-code}" if code < 0 else f"{name} ended ({code})"

    async def _handshake(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        launch = self._spec
        try:
            async with asyncio.timeout(launch.start_timeout):
                child = await self._spawn()
                assert child.stdin is not None
                assert child.stdout is not None
                child.stdin.write(msgspec.json.encode(wanted) + b"\n")
                line = await child.stdout.readline()
        except TimeoutError as fault:
            limit = f"{launch.start_timeout:g} s"
            raise EngineUnavailable(f"{launch.name} was not ready in {limit}") from fault
        except ConnectionError:
            return {}
        except ValueError:  # a line beyond all measure
            line = b"\0"
        return self._read(line) if line else {}

    async def _spawn(self) -> asyncio.subprocess.Process:
        launch = self._spec
        added = launch.environment
        try:
            self._child = child = await asyncio.create_subprocess_exec(
                *launch.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=MAX_LINE_BYTES,
                env={**os.environ, **added} if added else None,
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        except OSError as fault:
            reason = fault.strerror or type(fault).__name__
            program = launch.command[0]
            raise EngineUnavailable(f"{launch.name}: cannot run {program} ({reason})") from fault
        assert child.stderr is not None
        self._log_task = asyncio.create_task(self._read_log(child.stderr))
        return child

    def _read(self, line: bytes) -> dict[str, Any]:
        try:
            return msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as fault:
            said = line.decode("utf-8", "replace").strip()[:MAX_QUOTE_CHARS]
            raise EngineUnavailable(
                f"{self._spec.name} said what is not understood: {said!r}"
            ) from fault

    async def _reap(self) -> None:
        """Lets a child that has said its last word end, and hears the whole log."""
        assert self._child is not None
        if not await self.wait_for_exit(STOP_TIMEOUT_SECONDS):
            with suppress(ProcessLookupError):
                self._child.kill()
            await self.wait_for_exit(STOP_TIMEOUT_SECONDS)
        await self._drain_output()

    async def _drain_output(self) -> None:
        """The rest of what it said. Who still has its pipes is a helper that it left behind."""
        child, pump = self._child, self._log_task
        if child is None or child.stdout is None or pump is None:
            return
        rest = asyncio.gather(pump, child.stdout.read(), return_exceptions=True)
        done, _ = await asyncio.wait({rest}, timeout=LOG_DRAIN_SECONDS)
        if not done:
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            await asyncio.wait({rest}, timeout=LOG_DRAIN_SECONDS)
            rest.cancel()

    async def _read_log(self, log: asyncio.StreamReader) -> None:
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
            if self._spec.forward_logs:
                LOG.info("%s: %s", self._spec.name, text)


class PrivateSocket:
    """A unix socket in a folder that only this user can enter."""

    __slots__ = ("_folder",)

    def __init__(self) -> None:
        self._folder: str | None = None

    def create(self, name: str) -> str | None:
        """The path for it; None where there are no unix sockets, or none with so long a path."""
        if os.name != "posix":
            return None
        self._folder = tempfile.mkdtemp(prefix="dovetail-")
        path = f"{self._folder}/{name}"
        return path if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES else None

    def remove(self) -> None:
        """Takes the folder away. May be called twice."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


class EngineProcess:
    """A child with a socket of its own. Each engine starts its child in its own words."""

    __slots__ = ("_child", "_socket")

    def __init__(self, spec: ProcessSpec) -> None:
        self._socket = PrivateSocket()
        self._child = ChildProcess(spec)

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

    def describe_exit(self) -> str:
        """How the process ended, in words."""
        return self._child.describe_exit()

    async def raise_exit_error(self, fault: EngineUnavailable) -> NoReturn:
        """Raises what is to be told of a broken line: it is often the first sign of a death."""
        if await self._child.wait_for_exit(EXIT_DETECTION_SECONDS):
            raise EngineUnavailable(self.describe_exit()) from fault
        raise fault
