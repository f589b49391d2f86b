"""The turns that wait for one replica."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from dovetail.routing.session_scheduler import SessionScheduler
from dovetail.routing.session_turns import Turn, TurnArrival, TurnEnd
from dovetail.telemetry.distribution import Distribution

RetainFunction = Callable[[str, float], None]

_log = logging.getLogger(__name__)


class WaitStats(Protocol):
    """What the queue measures: see `SchedulingStats`."""

    waits: Distribution
    predicted: Distribution
    actual: Distribution


class SessionQueue:
    """Wakes waiting turns when the scheduler of a replica admits them.

    `retain`: called with the id of the last request of a session whose place is held, and with the
    seconds; None if the engine has no such function.
    """

    def __init__(self, scheduler: SessionScheduler, replica: int, stats: WaitStats) -> None:
        self.scheduler = scheduler
        self.retain: RetainFunction | None = None
        self._replica = replica
        self._stats = stats
        self._waiting: dict[Turn, asyncio.Future[bool]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def arrive(self, arrival: TurnArrival, arrived_at: float, *, is_started: bool) -> Turn:
        """Add a turn, which runs at once if there is room.

        `arrived_at`: when it arrived, perhaps at another replica.
        `is_started`: it has begun elsewhere, and does not wait again.
        """
        turn = self.scheduler.arrive(arrival, _now(), is_started=is_started)
        if turn.predicted_seconds is not None and turn.actual_seconds is not None:
            self._stats.predicted.add(turn.predicted_seconds)
            self._stats.actual.add(turn.actual_seconds)
        turn.arrived_at = arrived_at
        return turn

    async def wait(self, turn: Turn) -> bool:
        """Wait until a turn runs. Returns False if the replica failed."""
        if turn.state == "running":
            self._stats.waits.add(0.0)
            return True
        self._waiting[turn] = asyncio.get_running_loop().create_future()
        try:
            self.dispatch()
            return await self._waiting[turn]
        finally:
            self._waiting.pop(turn, None)

    def finish(self, turn: Turn, end: TurnEnd, request: str) -> None:
        """End a turn. `request`: the id of its last engine request."""
        seconds = self.scheduler.finish(turn, end, _now())
        if seconds > 0 and self.retain is not None:
            self.retain(request, seconds)
        self.dispatch()

    def cancel(self, turn: Turn) -> None:
        """Remove a turn, whether it waits or runs."""
        self.scheduler.cancel(turn, _now())
        self.dispatch()

    def release(self, session: str) -> None:
        self.scheduler.release(session, _now())
        self.dispatch()

    def restart(self, capacity: int | None) -> None:
        """Continue after the engine was restarted: its KV cache is empty."""
        now = _now()
        self.scheduler.set_capacity(capacity, now)
        self.scheduler.reset(now)
        self.dispatch()

    def fail(self) -> None:
        """Wake all waiting turns: the replica failed or was removed."""
        self.scheduler.reset(_now())
        for future in self._waiting.values():
            if not future.done():
                future.set_result(False)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def dispatch(self) -> None:
        """Wake the turns that may run now, and come back when the next one may."""
        now = _now()
        for turn in self.scheduler.admit(now):
            self._wake(turn, now)
        self.stop()
        deadline = self.scheduler.next_deadline(now)
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self.dispatch)

    def _wake(self, turn: Turn, now: float) -> None:
        waited = now - turn.arrived_at
        self._stats.waits.add(waited)
        fields = {
            "replica": self._replica,
            "wait_ms": round(waited * 1000),
            "prompt_tokens": turn.arrival.prompt_tokens,
        }
        if turn.is_forced:
            _log.warning("session_wait_expired", extra={"fields": fields})
        else:
            _log.info("session_resumed", extra={"fields": fields})
        future = self._waiting.get(turn)
        if future is not None and not future.done():
            future.set_result(True)


def _now() -> float:
    return asyncio.get_running_loop().time()
