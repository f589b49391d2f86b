"""Child processes of a server: start, specification, readiness and runtime folder."""

import asyncio
import fcntl
import os
import pickle
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import msgspec

from dovetail.settings.config import Config

NOTIFY_SOCKET_VARIABLE = "NOTIFY_SOCKET"


def notify(state: str) -> None:
    """Send `READY=1`, `STOPPING=1` or `RELOADING=1` to systemd, if it manages this process."""
    address = os.environ.get(NOTIFY_SOCKET_VARIABLE)
    if not address or not hasattr(socket, "AF_UNIX"):
        return
    if address.startswith("@"):  # systemd's notation of an abstract socket
        address = f"\0{address[1:]}"
    if state == "RELOADING=1":
        state += f"\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"
    # A missing receiver must not stop the server.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(address)
        sender.sendall(state.encode())


MAX_LINE_BYTES = 1 << 20
#: Delays before a crashed process is restarted, by number of crashes; the last delay repeats.
RESTART_DELAYS_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)


class ManagedProcess:
    """A child process.

    ready: Whether the process has reported that it is ready.
    """

    __slots__ = ("_module", "_pending_signal", "_process", "ready")

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: asyncio.subprocess.Process | None = None
        self._pending_signal: signal.Signals | None = None  # sent before the process existed
        self.ready = False

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, spec: object) -> dict[str, Any] | None:
        """Start the process. Returns what it reports when ready, or None if it exits before."""
        # Only the parent notifies the service manager.
        environment = {k: v for k, v in os.environ.items() if k != NOTIFY_SOCKET_VARIABLE}
        self._process = process = await asyncio.create_subprocess_exec(
            # -P: do not import modules from the working folder.
            *(sys.executable, "-P", "-m", self._module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            limit=MAX_LINE_BYTES,
            start_new_session=True,  # the parent forwards Ctrl-C
        )
        if self._pending_signal is not None:
            self.send(self._pending_signal)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(pickle.dumps(spec))
        with suppress(ConnectionError):
            await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            await process.wait()
            return None
        self.ready = True
        return msgspec.json.decode(line, type=dict[str, Any])

    async def wait(self) -> int:
        """Wait for the process to exit, and return its exit status."""
        assert self._process is not None
        return await self._process.wait()

    def send(self, number: signal.Signals) -> None:
        if self._process is None:
            self._pending_signal = number
        elif self.alive:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def describe_exit_status(status: int) -> str:
    """Describe an exit status or signal."""
    if status >= 0:
        return f"status {status}"
    with suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"


LIMITS_FILE = "limits"  # in the runtime folder: the shared rate limit counters
_T = TypeVar("_T")


@dataclass(frozen=True)
class WorkerSpec:
    """Specification of a worker process.

    number: Number of the worker, from 0.
    config: Configuration of the server.
    port: Port that the server listens on.
    folder: Runtime folder with the sockets of all workers and their shared files.
    restarts: How often this worker was restarted.
    """

    number: int
    config: Config
    port: int
    folder: Path
    restarts: int = 0


@dataclass(frozen=True)
class EngineHostSpec:
    """Specification of a process that runs an engine for all workers.

    config: Configuration of the model and its engine.
    socket: Unix socket that the process listens on.
    key: API key that the workers send.
    """

    config: Config
    socket: Path
    key: str


def receive_spec(spec_type: type[_T]) -> _T:
    """Read the specification of this process, and redirect its standard output to the log."""
    if sys.stdin.isatty():
        sys.exit("this module is internal; use `dovetail serve --workers N`")
    global _report_fd
    _report_fd = os.dup(1)
    os.dup2(2, 1)
    spec = pickle.load(sys.stdin.buffer)
    assert isinstance(spec, spec_type)
    return spec


def report_ready(facts: dict[str, Any]) -> None:
    """Report to the parent that this process is ready."""
    os.write(_report_fd, msgspec.json.encode(facts) + b"\n")


def exit_with_parent() -> None:
    """Terminate this process gracefully when its stdin ends, which its parent holds open."""
    Thread(target=_terminate_on_stdin_eof, name="dovetail-parent", daemon=True).start()


def _terminate_on_stdin_eof() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


_report_fd = 1


PREFIX = "dovetail-"
LOCK_FILE = "held"

_lock_fds: list[int] = []  # the locks end with this process


def create_runtime_dir() -> Path:
    """Create a private runtime folder, after removing stale ones."""
    _remove_stale_dirs(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    # Lock the file before it gets its final name. Folders without that file are never removed.
    new = folder / f"{LOCK_FILE}.new"
    new.touch(mode=0o600)
    _lock(new)
    new.rename(folder / LOCK_FILE)
    return folder


def hold_runtime_dir(folder: Path) -> None:
    """Keep the folder while this process lives, even if its parent was killed."""
    _lock(folder / LOCK_FILE)


def _lock(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    _lock_fds.append(descriptor)


def _remove_stale_dirs(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another supervisor may be removing it
            if _is_ours(folder) and _is_abandoned(folder):
                shutil.rmtree(folder)


def _is_ours(folder: Path) -> bool:
    """Return whether this is a private folder of this user, as a supervisor creates it."""
    status = folder.lstat()
    private = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o700
    return private and status.st_uid == os.geteuid()


def _is_abandoned(folder: Path) -> bool:
    """Return whether no process holds the folder. Raises OSError if it is no runtime folder."""
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
