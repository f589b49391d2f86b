"""What parent and child say to each other.

In goes one order on the child's stdin; out comes one line of JSON on its stdout, once it is ready.
The end of stdin is the order to end, however the parent came to its own end. Keys are among the
settings: a pipe shows them to nobody, a command line to everybody.
"""

import os
import pickle
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import msgspec

from dovetail.settings.config import Config

LIMITS_FILE = "limits"  # in the server's folder: what the limits of keys are counted in
_T = TypeVar("_T")


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker serves, where, and beside whom. `port` is what the server listens on.

    The sockets of the others, and all that they share, lie in `folder`.
    """

    number: int
    config: Config
    port: int
    folder: Path
    restarts: int = 0  # of this worker, before this start


@dataclass(frozen=True)
class EngineHostSpec:
    """The engine that a process runs for all workers, and where it listens."""

    config: Config
    socket: Path
    key: str


def receive_spec(spec_type: type[_T]) -> _T:
    """The order of this process. What anything else prints is log from now on."""
    if sys.stdin.isatty():
        sys.exit("this is started by `dovetail serve --workers`")
    global _report_fd
    _report_fd = os.dup(1)
    os.dup2(2, 1)
    order = pickle.load(sys.stdin.buffer)
    assert isinstance(order, spec_type)
    return order


def report_ready(facts: dict[str, Any]) -> None:
    """Tells the parent that this process is ready."""
    os.write(_report_fd, msgspec.json.encode(facts) + b"\n")


def exit_with_parent() -> None:
    """Has this process end in good order when its parent is gone."""
    Thread(target=_wait_for_parent_exit, name="dovetail-parent", daemon=True).start()


def _wait_for_parent_exit() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


_report_fd = 1
