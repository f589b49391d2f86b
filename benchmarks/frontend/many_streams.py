"""Thousands of concurrent slow streams: does each event arrive, and how much memory is used?"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tools.running import NAME

from benchmarks.frontend import client, cpu
from benchmarks.frontend.client import Plan, Seen
from benchmarks.frontend.latency import EDGE, percentile
from benchmarks.frontend.parts import Part
from benchmarks.frontend.requests import PATHS, body, read_stream
from benchmarks.frontend.servers import Frontend

SPREAD = 10.0  # seconds over which streams begin, so that their phases differ
HOLD = 6.0  # seconds for which slow clients do not read
_LOOK = 0.25  # seconds between samples of the memory


@dataclass(frozen=True)
class Many:
    """The number of streams, their errors, and the frontend's memory."""

    streams: int
    lost: int
    first_fault: str
    kilobytes: float  # per stream, at the peak
    us: float  # of CPU time per token
    p99: float = 0.0  # milliseconds between tokens


def slow(
    frontend: Frontend, api: str, parts: Sequence[Part], streams: int, spread: float = SPREAD
) -> Many:
    """Run slow streams. Their texts differ, so that mixed-up streams are detected."""
    bodies = tuple(body(api, NAME, part.cue).decode() for part in parts)
    plan = Plan(frontend.port, PATHS[api], bodies, streams, spread=spread, keep=True)
    return _watched(frontend, api, plan, parts)


def unread(frontend: Frontend, api: str, part: Part, streams: int) -> Many:
    """Stream a long response at the engine's speed to clients that do not read for a while.

    Memory is measured while no client reads: it must not grow with the rest of the response.
    """
    text = body(api, NAME, part.cue).decode()
    plan = Plan(frontend.port, PATHS[api], (text,), streams, spread=1.0, hold=HOLD, keep=True)
    return _watched(frontend, api, plan, (part,), HOLD)


def _watched(
    frontend: Frontend, api: str, plan: Plan, parts: Sequence[Part], seconds: float = inf
) -> Many:
    before, begun = frontend.await_idle(), cpu.spent(frontend.pid)
    with Memory(frontend.pid, seconds) as memory:
        seen = client.run(plan)
    tokens = frontend.await_idle() - before
    spent = cpu.spent(frontend.pid).since(begun)
    faults = [fault for one in seen if (fault := _fault(api, one, parts[one.body]))]
    return Many(
        plan.streams,
        len(faults),
        faults[0] if faults else "",
        memory.grown(frontend.fresh) / 1024 / plan.streams,
        spent.total / max(1, tokens) * 1e6,
        percentile([gap for one in seen for gap in one.gaps[EDGE:-EDGE]], 0.99),
    )


def _fault(api: str, seen: Seen, part: Part) -> str:
    """Return the error of a stream, or an empty string."""
    if client.status(seen.raw) != 200:
        return f"status {client.status(seen.raw)}"
    text, ended = read_stream(api, client.dechunked(seen.raw))
    if not ended:
        return f"no end, after {len(text)} of {len(part.text)} characters"
    return "" if text == part.text else f"not the text of {part.name}: {text[:80]!r}"


class Memory:
    """The peak memory growth of a process in the first seconds of the block."""

    def __init__(self, pid: int, seconds: float = inf) -> None:
        self._pid = pid
        self._until = time.monotonic() + seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._max_bytes = cpu.resident(pid)

    def grown(self, before: int) -> int:
        return self._max_bytes - before

    def _look(self) -> None:
        while not self._over.wait(_LOOK) and time.monotonic() < self._until:
            self._max_bytes = max(self._max_bytes, cpu.resident(self._pid))

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
