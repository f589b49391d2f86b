"""Start and stop the processes that are measured."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from benchmarks.gpu.process_commands import Replay, Serve
from benchmarks.gpu.scripted_engine import Note, read_notes
from benchmarks.report import ROOT


@dataclass
class ServerProcess:
    """A running server. `folder` has its notes and its log."""

    folder: Path
    ports: dict[str, int]
    facts: dict[str, Any]
    load_s: float

    def notes(self) -> list[Note]:
        return read_notes(self.folder)


@contextmanager
def run_server_process(order: Serve) -> Iterator[ServerProcess]:
    """Run the server and its engine until the block exits."""
    folder = Path(order.folder)
    with (folder / "server.log").open("w") as log:
        process = _start([sys.executable, "-m", "benchmarks.gpu.server"], log)
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(msgspec.json.encode(order) + b"\n")
                process.stdin.flush()
                message = msgspec.json.decode(process.stdout.readline() or b"{}")
                if "ports" not in message:
                    reason = message.get("error")
                    raise RuntimeError(f"the server failed: {reason}: {_end_of(log.name)}")
                yield ServerProcess(folder, message["ports"], message["facts"], message["load_s"])
            finally:
                process.stdin.close()
                _wait(process)


def play_alone(order: Replay, python: str | None) -> Iterator[dict[str, Any]]:
    """Replay requests to the engine alone, and yield its figures."""
    with (Path(order.folder) / "alone.log").open("w") as log:
        process = _start([python or sys.executable, "-m", "benchmarks.gpu.engine_replay"], log)
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.flush()
            for line in process.stdout:
                yield msgspec.json.decode(line)
            process.stdin.close()
            if _wait(process):
                raise RuntimeError(f"the engine alone failed: {_end_of(log.name)}")


def share_paths() -> None:
    """Return an environment in which child processes can import the same modules."""
    sources = [str(path) for path in sorted((ROOT / "packages").glob("*/src"))]
    before = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*before, *sources, str(ROOT)]))


def _start(command: Sequence[str], log: IO[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
    )


def _wait(process: "subprocess.Popen[bytes]") -> int:
    try:
        return process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _end_of(log: str) -> str:
    return Path(log).read_text(errors="replace")[-3000:]
