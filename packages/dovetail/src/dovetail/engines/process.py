"""The child process of an engine: start it, read its log, stop it.

The parent writes one line of JSON to the child's stdin: the configuration. The child writes one
line of JSON to its stdout: the `address` where it listens, or an `error`. Its stderr is its log.
The child exits when its stdin is closed, so it never outlives its parent.
"""

import asyncio
import logging
import os
import shutil
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from dovetail_model import EngineUnavailable

_log = logging.getLogger(__name__)
EXIT_DETECTION_SECONDS = 1.0  # time for a process to exit after its connection broke
MAX_LOG_LINES = 60  # retained to report why the child failed
MAX_LINE_BYTES = 1 << 20
MAX_SOCKET_PATH_BYTES = 100  # systems allow 104 to 108
STOP_TIMEOUT_SECONDS = 10.0  # time for a child to exit after its stdin was closed
EXIT_POLL_SECONDS = 0.02
LOG_DRAIN_SECONDS = 1.0  # time to read the rest of the log after the child has exited
MAX_QUOTE_CHARS = 200


@dataclass(frozen=True)
class ProcessSpec:
    """How a child is started.

    `name`: the name of the child in error messages.
    `start_timeout`: seconds that the child may take to become ready.
    `forward_logs`: whether to log the lines that the child prints.
    `on_log_line`: called with each of these lines.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] | None = None
    start_timeout: float = 600.0
    forward_logs: bool = False
    on_log_line: Callable[[str], None] | None = None


class ChildProcess:
    """One child process. It can be started only once."""

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
        """Start the child and return its response: it is ready, or it reports an `error`.

        Raise `EngineUnavailable` if the child cannot be run or is not ready in time. A child whose
        response has no `address` has exited.
        """
        try:
            response = await self._handshake(config)
            self._ready = "address" in response
            if not self._ready:
                await self._reap()
        except BaseException:
            await self.stop()
            raise
        return response

    async def stop(self) -> None:
        """Stop the process and wait for its exit. Safe to call at any time and repeatedly."""
        child = self._child
        if child is not None and child.stdin is not None:
            child.stdin.close()
            # A child that is loading a model may not read stdin, so it is killed at once.
            if not await self.wait_for_exit(STOP_TIMEOUT_SECONDS if self._ready else 0.0):
                with suppress(ProcessLookupError):
                    child.kill()
                await self.wait_for_exit(STOP_TIMEOUT_SECONDS)
        await self._drain_output()

    async def wait_for_exit(self, timeout_seconds: float) -> bool:
        """Return whether the process exits within `timeout_seconds`.

        It is polled because asyncio's `wait` also waits for all processes that inherited the pipes.
        """
        for _ in range(round(timeout_seconds / EXIT_POLL_SECONDS)):
            if not self.alive:
                return True
            await asyncio.sleep(EXIT_POLL_SECONDS)
        return not self.alive

    def describe_exit(self) -> str:
        """Describe how the process ended."""
        code = self._child.returncode if self._child is not None else None
        name = self._spec.name
        if code is None:
            return f"{name} does not respond"
        if code == -signal.SIGKILL:
            return f"{name} was killed by SIGKILL, possibly because the machine is out of memory"
        return (
            f"{name} was terminated by signal {-code}"
            if code < 0
            else f"{name} exited with status {code}"
        )

    async def _handshake(self, config: Mapping[str, Any]) -> dict[str, Any]:
        spec = self._spec
        try:
            async with asyncio.timeout(spec.start_timeout):
                child = await self._spawn()
                assert child.stdin is not None
                assert child.stdout is not None
                child.stdin.write(msgspec.json.encode(config) + b"\n")
                line = await child.stdout.readline()
        except TimeoutError as fault:
            limit = f"{spec.start_timeout:g} s"
            raise EngineUnavailable(f"{spec.name} was not ready within {limit}") from fault
        except ConnectionError:
            return {}
        except ValueError:  # the line is longer than MAX_LINE_BYTES
            line = b"\0"
        return self._read(line) if line else {}

    async def _spawn(self) -> asyncio.subprocess.Process:
        spec = self._spec
        environment = spec.environment
        try:
            self._child = child = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=MAX_LINE_BYTES,
                env={**os.environ, **environment} if environment else None,
                start_new_session=True,  # the child must not receive Ctrl-C: the server handles it
            )
        except OSError as fault:
            reason = fault.strerror or type(fault).__name__
            program = spec.command[0]
            raise EngineUnavailable(f"{spec.name}: cannot run {program} ({reason})") from fault
        assert child.stderr is not None
        self._log_task = asyncio.create_task(self._read_log(child.stderr))
        return child

    def _read(self, line: bytes) -> dict[str, Any]:
        try:
            return msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as fault:
            output = line.decode("utf-8", "replace").strip()[:MAX_QUOTE_CHARS]
            raise EngineUnavailable(
                f"{self._spec.name} printed a line that is not a JSON object: {output!r}"
            ) from fault

    async def _reap(self) -> None:
        """Wait until a child that reported an error has exited, and read the rest of its log."""
        assert self._child is not None
        if not await self.wait_for_exit(STOP_TIMEOUT_SECONDS):
            with suppress(ProcessLookupError):
                self._child.kill()
            await self.wait_for_exit(STOP_TIMEOUT_SECONDS)
        await self._drain_output()

    async def _drain_output(self) -> None:
        """Read the rest of the output, for a limited time: subprocesses may hold the pipes open."""
        child, log_task = self._child, self._log_task
        if child is None or child.stdout is None or log_task is None:
            return
        rest = asyncio.gather(log_task, child.stdout.read(), return_exceptions=True)
        done, _ = await asyncio.wait({rest}, timeout=LOG_DRAIN_SECONDS)
        if not done:
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            await asyncio.wait({rest}, timeout=LOG_DRAIN_SECONDS)
            rest.cancel()

    async def _read_log(self, log: asyncio.StreamReader) -> None:
        """Read the log continuously, so that the child never blocks on writing it."""
        while True:
            try:
                line = await log.readline()
            except ValueError:  # longer than the limit: the remainder is read as further lines
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()
            self.log.append(text)
            if self._spec.on_log_line is not None:
                self._spec.on_log_line(text)
            if self._spec.forward_logs:
                _log.info("%s: %s", self._spec.name, text)


class PrivateSocket:
    """A unix socket in a folder that only the current user can access."""

    __slots__ = ("_folder",)

    def __init__(self) -> None:
        self._folder: str | None = None

    def create(self, name: str) -> str | None:
        """Return the socket's path; None if unix sockets are missing or the path is too long."""
        if os.name != "posix":
            return None
        self._folder = tempfile.mkdtemp(prefix="dovetail-")
        path = f"{self._folder}/{name}"
        return path if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES else None

    def remove(self) -> None:
        """Remove the folder. Safe to call repeatedly."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


class EngineProcess:
    """A child process with a private socket. Subclasses define how it is started."""

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
        """Stop the process and wait for its exit. Safe to call at any time and repeatedly."""
        await self._child.stop()
        self._socket.remove()

    def describe_exit(self) -> str:
        """Describe how the process ended."""
        return self._child.describe_exit()

    async def raise_exit_error(self, fault: EngineUnavailable) -> NoReturn:
        """Raise the exit of the process as the error if it has exited, else the connection error.

        A broken connection is often the first sign that the process died.
        """
        if await self._child.wait_for_exit(EXIT_DETECTION_SECONDS):
            raise EngineUnavailable(self.describe_exit()) from fault
        raise fault
