"""What a process has used, as the kernel tells in /proc.

Fields 14 and 15 of /proc/PID/stat are user and system time of all threads, those that have ended
too. The kernel counts their sum exactly and shows it in ticks, of 10 ms on Linux: a run of a few
seconds of processor time is known to better than one per cent.
"""

import os
from dataclasses import dataclass
from pathlib import Path

TICK = 1.0 / os.sysconf("SC_CLK_TCK")  # seconds


@dataclass(frozen=True)
class Spent:
    """Seconds of processor time."""

    user: float
    system: float

    @property
    def total(self) -> float:
        return self.user + self.system

    def since(self, before: "Spent") -> "Spent":
        return Spent(self.user - before.user, self.system - before.system)


def spent(pid: int) -> Spent:
    """What a process and all its threads have used up to now."""
    return read_stat(Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace"))


def read_stat(line: str) -> Spent:
    """The two times in a line of /proc/PID/stat. The name in it may hold anything, spaces too."""
    fields = line.rpartition(")")[2].split()
    return Spent(int(fields[11]) * TICK, int(fields[12]) * TICK)


def resident(pid: int) -> int:
    """Bytes of memory that a process has in use."""
    return read_status(Path(f"/proc/{pid}/status").read_text("utf-8"))


def read_status(text: str) -> int:
    """VmRSS of /proc/PID/status, which is in kilobytes."""
    (line,) = (line for line in text.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def load() -> str:
    """How busy the machine is, its own benchmark included."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg())
