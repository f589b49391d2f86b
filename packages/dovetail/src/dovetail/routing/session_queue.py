"""The turns that wait for one replica."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import nsmallest
from math import inf
from typing import Protocol

from dovetail.routing.session_scheduler import SessionScheduler
from dovetail.routing.session_turns import Turn, TurnArrival, TurnEnd
from dovetail.telemetry.distribution import Distribution

RetainFunction = Callable[[str, float], None]
MoveCallback = Callable[["SessionQueue", Turn], None]
#: So many waiting turns of a replica are offered to another one at once.
MAX_OFFERED_TURNS = 16
MAX_LOGGED_CHARS = 200
#: After so many complete turns it is reported that the rate of prefill cannot be measured.
UNMEASURED_TURNS = 20
_UNMEASURED_REMEDY = "let it report cached tokens: vLLM needs --enable-prompt-tokens-details"

_log = logging.getLogger(__name__)


class WaitStats(Protocol):
    """What the queue measures: see `SchedulingStats`."""

    waits: Distribution
    predicted: Distribution
    actual: Distribution


@dataclass(frozen=True, slots=True)
class _Waiter:
    """Who waits for a turn: see `SessionQueue.wait`."""

    future: asyncio.Future[bool]
    on_moved: MoveCallback


class SessionQueue:
    """Wakes waiting turns when the scheduler of a replica admits them.

    `engine`: the name of the engine, for the log.
    `on_change`: called after each change, when there may be room for turns of other replicas.
    `retain`: called with the id of the last request of a turn that has ended, and with the seconds
    for which the place of its session is held, perhaps 0; None if the engine has no such function.
    """

    def __init__(
        self,
        scheduler: SessionScheduler,
        replica: int,
        engine: str,
        stats: WaitStats,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.scheduler = scheduler
        self.retain: RetainFunction | None = None
        self.replica = replica
        self._engine = engine
        self._was_suspended = False  # as it was reported last
        self._finished = 0  # turns, until the rate of prefill is measured
        self._stats = stats
        self._on_change = on_change
        self._waiting: dict[Turn, _Waiter] = {}
        self._timer: asyncio.Handle | None = None  # of the next call of `_dispatch`
        self._is_dispatching = False  # whether that is in this iteration of the event loop

    def arrive(
        self, arrival: TurnArrival, *, arrived_at: float | None = None, is_started: bool = False
    ) -> Turn:
        """Add a turn, which runs at once if there is room.

        `arrived_at`: since when it waits, if it has waited before, perhaps for another replica.
        `is_started`: it has begun elsewhere, and does not wait again.
        """
        turn = self._add(arrival, arrived_at=arrived_at, is_started=is_started)
        if turn.predicted_seconds is not None and turn.actual_seconds is not None:
            self._stats.predicted.add(turn.predicted_seconds)
            self._stats.actual.add(turn.actual_seconds)
        return turn

    async def wait(self, turn: Turn, on_moved: MoveCallback) -> bool:
        """Wait until a turn runs. Returns False if the replica failed.

        `on_moved`: called if another replica runs the turn, with its queue and the turn there.
        """
        if turn.state == "running":
            self._report(turn)
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = _Waiter(future, on_moved)
        try:
            self.dispatch()
            return await future
        finally:
            self._waiting.pop(turn, None)

    def finish(self, turn: Turn, end: TurnEnd, request: str) -> None:
        """End a turn. `request`: the id of its last engine request."""
        seconds = self.scheduler.finish(turn, end, _now())
        if self.retain is not None:
            self.retain(request, 0.0 if self.scheduler.is_suspended else seconds)
        if self.scheduler.capacity_tokens and not self.scheduler.prefill_rate.is_measured:
            self._finished += 1
            if self._finished == UNMEASURED_TURNS:
                self._report_unmeasured()
        self.dispatch()

    def cancel(self, turn: Turn, request: str) -> None:
        """Remove a turn, whether it waits or runs. `request`: the id of its last engine request."""
        if self.retain is not None and turn.state == "running":
            self.retain(request, 0.0)
        self.scheduler.cancel(turn, _now())
        self.dispatch()

    def release(self, session: str) -> None:
        self.scheduler.release(session, _now())
        self.dispatch()

    def drain(self) -> None:
        """Hold no places from now on: no session can return."""
        self.scheduler.drain(_now())
        self.dispatch()

    def restart(self, capacity: int | None) -> None:
        """Continue after the engine was restarted: its KV cache is empty."""
        self.scheduler.set_capacity(capacity)
        self.scheduler.reset()
        self._report_suspension()
        self.dispatch()

    def fail(self) -> None:
        """Wake all waiting turns: the replica failed or was removed."""
        now = _now()
        self.scheduler.reset()
        self._was_suspended = False  # its turns wait nowhere: that is not worth a line in the log
        for turn, waiter in self._waiting.items():
            if turn.state == "waiting":
                self.scheduler.cancel(turn, now)
            if not waiter.future.done():
                waiter.future.set_result(False)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_dispatching = False

    def dispatch(self) -> None:
        """Wake the turns that may run, once for all changes of an iteration of the event loop."""
        if not self._is_dispatching:
            self.stop()
            self._is_dispatching = True
            self._timer = asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Wake the turns that may run now, and come back when the next one may."""
        self.stop()
        now = _now()
        for turn in self.scheduler.admit(now):
            self._wake(turn)
        deadline = self.scheduler.next_deadline(now)
        if not self._is_dispatching and deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._dispatch)
        self._on_change()

    def cold_turns(self) -> list[Turn]:
        """Return waiting turns of sessions that have no place here, the most urgent first."""
        cold = (
            turn
            for turn, waiter in self._waiting.items()
            if turn.state == "waiting"
            and not waiter.future.done()
            and not self.scheduler.has_place(turn.arrival.session)
        )
        return nsmallest(MAX_OFFERED_TURNS, cold, key=_urgency)

    def take_over(self, turn: Turn, source: "SessionQueue") -> bool:
        """Run a turn that waits for another replica, if there is room for it now."""
        now = _now()
        if not self.scheduler.can_run(turn.arrival, now):
            return False
        moved = self._add(turn.arrival, arrived_at=turn.arrived_at)
        self._report(moved)
        source._hand_over(turn, self, moved)
        return True

    def _hand_over(self, turn: Turn, target: "SessionQueue", moved: Turn) -> None:
        waiter, now = self._waiting.pop(turn), _now()
        waiter.on_moved(target, moved)
        waiter.future.set_result(True)
        self.scheduler.cancel(turn, now)
        session = turn.arrival.session
        if all(one.arrival.session != session for one in self._waiting):
            self.scheduler.release(session, now)
        self.dispatch()

    def _add(
        self, arrival: TurnArrival, *, arrived_at: float | None, is_started: bool = False
    ) -> Turn:
        """Add a turn to the scheduler. The return of its session may suspend scheduling."""
        turn = self.scheduler.arrive(arrival, _now(), arrived_at=arrived_at, is_started=is_started)
        self._report_suspension()
        return turn

    def _wake(self, turn: Turn) -> None:
        self._report(turn)
        waiter = self._waiting.get(turn)
        if waiter is not None and not waiter.future.done():
            waiter.future.set_result(True)

    def _report_suspension(self) -> None:
        """Report that scheduling was suspended or continues, and wake turns that need not wait."""
        is_suspended = self.scheduler.is_suspended
        if is_suspended == self._was_suspended:
            return
        self._was_suspended = is_suspended
        rate = self.scheduler.prefill_rate
        fields = {
            "engine": self._engine,
            "replica": self.replica,
            "prefill_tokens_per_second": round(rate.tokens_per_second),
        }
        state = "suspended" if is_suspended else "continued"
        _log.info(f"session_scheduling_{state}", extra={"fields": fields})
        self.dispatch()

    def _report_unmeasured(self) -> None:
        """Report that places are held by the assumed rate of prefill, which may be wrong."""
        fields = {
            "engine": self._engine,
            "replica": self.replica,
            "reason": "the engine reported no cached tokens, or all prompts are short",
            "remedy": _UNMEASURED_REMEDY,
        }
        _log.warning("prefill_rate_unknown", extra={"fields": fields})

    def _report(self, turn: Turn) -> None:
        """Report the start of a turn, in the log if it has waited or had no room."""
        waited = turn.waited_seconds or 0.0
        self._stats.waits.add(waited)
        if not waited and not turn.is_forced:
            return
        fields = {
            "engine": self._engine,
            "replica": self.replica,
            "session": turn.arrival.session[:MAX_LOGGED_CHARS],
            "wait_ms": round(waited * 1000),
            "prompt_tokens": turn.arrival.prompt_tokens,
        }
        if turn.is_forced:
            _log.warning("session_wait_expired", extra={"fields": fields})
        else:
            _log.info("session_resumed", extra={"fields": fields})


def move_cold_turns(sources: Iterable[SessionQueue], targets: Iterable[SessionQueue]) -> None:
    """Let replicas with room run turns that wait for others without having a place there.

    A replica takes over turns only while none waits for it.
    """
    waiting = [one for one in sources if one.scheduler.waiting_turns]
    if not waiting:
        return
    for target in sorted(targets, key=lambda one: one.scheduler.used_tokens):
        if target.scheduler.capacity_tokens is None or target.scheduler.waiting_turns:
            continue
        for source in waiting:
            smallest_rejected: float = inf
            for turn in source.cold_turns():
                tokens = turn.arrival.own_tokens
                if turn.state != "waiting" or tokens >= smallest_rejected:
                    continue
                if not target.take_over(turn, source):
                    smallest_rejected = tokens


def _urgency(turn: Turn) -> tuple[float, ...]:
    return (-turn.arrival.priority, turn.arrival.background, turn.arrived_at, turn.number)


def _now() -> float:
    return asyncio.get_running_loop().time()
