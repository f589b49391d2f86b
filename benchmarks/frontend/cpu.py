"""CPU time and memory of a process, from /proc.

Fields 14 and 15 of /proc/PID/stat are user and system time of all threads, including ended ones.
The kernel counts their sum exactly and reports it in ticks, of 10 ms on Linux: for a run with a few
seconds of CPU time, the error is below one per cent.
"""

import os
from dataclasses import dataclass
from pathlib import Path

TICK = 1.0 / os.sysconf("SC_CLK_TCK")  # seconds


@dataclass(frozen=True)
class Spent:
    """Seconds of CPU time."""

    user: float
    system: float

    @property
    def total(self) -> float:
        return self.user + self.system

    def plus(self, other: "Spent") -> "Spent":
        return Spent(self.user + other.user, self.system + other.system)

    def since(self, before: "Spent") -> "Spent":
        return Spent(self.user - before.user, self.system - before.system)


NOTHING = Spent(0.0, 0.0)


def spent(pid: int) -> Spent:
    """Return the CPU time of a process and all its threads so far."""
    return read_stat(Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace"))


def read_stat(line: str) -> Spent:
    """Parse the two times in /proc/PID/stat. The process name in it may contain spaces."""
    fields = line.rpartition(")")[2].split()
    return Spent(int(fields[11]) * TICK, int(fields[12]) * TICK)


def engine_process(parent: int) -> int:
    """Return the id of the process that a server runs its engine in."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it has exited
            continue
        if int(fields[1]) == parent and b"child_main.py" in command:
            return int(folder.name)
    raise LookupError(f"process {parent} runs no engine")


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return read_status(Path(f"/proc/{pid}/status").read_text("utf-8"))


def read_status(text: str) -> int:
    """Parse VmRSS in /proc/PID/status, which is in kilobytes."""
    (line,) = (line for line in text.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def load() -> str:
    """Return the load of the machine, including this benchmark."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg())
