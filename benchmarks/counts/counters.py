"""Count what a process does while a load runs: wake-ups, system calls, Python calls."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.counts.server import TOGGLE

_START_SECONDS = 0.5  # for a signal to arrive, and for strace to attach
_WAIT_SECONDS = 30.0
_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)


@dataclass
class Calls:
    """Calls by name: of Python functions, and of C functions by Python code."""

    python: Counter[str] = field(default_factory=Counter)
    native: Counter[str] = field(default_factory=Counter)


def count_wakeups(pid: int) -> int:
    """Return how often the threads of a process have waited for something so far."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        found = _SWITCHES.search(status.read_text("utf-8"))
        total += int(found[1]) if found else 0
    return total


def has_strace() -> bool:
    return shutil.which("strace") is not None


@contextmanager
def counting_system_calls(pid: int, scratch: Path) -> Iterator[Counter[str]]:
    """Count the system calls of a process with strace. The counter is filled at the end."""
    found: Counter[str] = Counter()
    summary = scratch / "strace.txt"
    command = ["strace", "-f", "-c", "-o", str(summary), "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as tracer:
        time.sleep(_START_SECONDS)
        try:
            yield found
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait()
    found.update(parse_summary(summary.read_text("utf-8")))


def parse_summary(text: str) -> dict[str, int]:
    """Parse the table of `strace -c`: the calls by name, without the total."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        cells = line.split()
        # The column of errors may be empty.
        if len(cells) in (5, 6) and cells[3].isdigit() and cells[-1] != "total":
            found[cells[-1]] = int(cells[3])
    return found


@contextmanager
def counting_calls(pid: int, path: Path) -> Iterator[Calls]:
    """Count the calls of the process of `benchmarks.counts.server`, which writes to `path`."""
    found = Calls()
    path.unlink(missing_ok=True)
    os.kill(pid, TOGGLE)
    time.sleep(_START_SECONDS)
    try:
        yield found
    finally:
        os.kill(pid, TOGGLE)
    until = time.monotonic() + _WAIT_SECONDS
    while not path.is_file():
        if time.monotonic() > until:
            raise RuntimeError("the server did not write its counts")
        time.sleep(0.05)
    counts = json.loads(path.read_bytes())
    found.python.update(counts["python"])
    found.native.update(counts["native"])
