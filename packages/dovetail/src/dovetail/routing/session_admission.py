"""Let turns wait while more sessions are active than fit into the KV caches of the replicas.

`SessionScheduler` decides; this module waits. Each replica has a scheduler of its own, because a
session returns to the replica that has its prefix cached. A turn waits after its replica was
selected and before its first engine request, never inside the turn.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dovetail.engines.engine import EngineRequest, TokenSink
from dovetail.engines.llamacpp.capacity import common_prefix_length
from dovetail.routing.prefill_rate import PrefillMeter
from dovetail.routing.session_queue import RetainFunction, SessionQueue, move_cold_turns
from dovetail.routing.session_scheduler import SessionScheduler
from dovetail.routing.session_turns import (
    SchedulingLimits,
    SessionState,
    Turn,
    TurnArrival,
    TurnEnd,
    TurnProfile,
)
from dovetail.routing.tool_times import ToolTimes
from dovetail.storage.lru import LruCache
from dovetail.telemetry.distribution import Distribution

#: The expected output of turns without a prediction, until outputs were observed.
INITIAL_OUTPUT_TOKENS = 256.0
OUTPUT_SMOOTHING = 0.05
MAX_SESSIONS = 1 << 16
#: Conversations of a session without a place are deleted when it has more than this.
MAX_BRANCHES = 256
#: So long after a client has given up, a retry continues its wait.
RETRY_SECONDS, MAX_ABANDONED_WAITS = 60.0, 4096
MAX_HEADS = 128
MAX_HEAD_TOKENS = 1 << 15
DURATION_BUCKETS_SECONDS = (
    *(0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 120.0, 240.0, 600.0, 1800.0, 3600.0),
)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Head:
    """The beginning of the prompt of one session, and what another session shares with it."""

    session: str
    ids: "array[int]"
    shared_tokens: int = 0


class SharedHeads:
    """The heads of recent prompts. Sessions with the same system text and tools share one."""

    def __init__(self) -> None:
        self._heads: LruCache[str, _Head] = LruCache(MAX_HEADS)

    def measure(self, head: str, session: str, prompt: "array[int]") -> int:
        """Return how many leading tokens of a prompt other sessions with this head have as well."""
        known = self._heads.get(head)
        if known is None:
            self._heads.put(head, _Head(session, prompt[:MAX_HEAD_TOKENS]))
            return 0
        if known.session != session:
            known.shared_tokens = common_prefix_length(known.ids, prompt)
        return min(known.shared_tokens, len(prompt))


class SchedulingStats:
    """Distributions for the metrics.

    `waits`: the waiting times of the turns that ran, with 0 for those that did not wait.
    `predicted`, `actual`: the time between two turns of a session, where it was predicted.
    """

    def __init__(self) -> None:
        self.waits = Distribution(DURATION_BUCKETS_SECONDS)
        self.predicted = Distribution(DURATION_BUCKETS_SECONDS)
        self.actual = Distribution(DURATION_BUCKETS_SECONDS)


class SessionAdmission:
    """Schedules the sessions of a pool.

    `kv_tokens`: the capacity of each replica's KV cache; None to use what the engine reports.
    """

    def __init__(
        self, kv_tokens: int | None = None, limits: SchedulingLimits | None = None
    ) -> None:
        self._kv_tokens = kv_tokens
        self._limits = limits or SchedulingLimits()
        self._tool_times = ToolTimes()
        self._queues: dict[int, SessionQueue] = {}
        self._is_moving_turns = False
        self._removed_expired_waits = 0
        #: Returns whether a replica may take over turns that wait for others.
        self.accepts: Callable[[int], bool] = lambda replica: True
        self._branches: LruCache[str, set[str]] = LruCache(MAX_SESSIONS)
        self._abandoned: LruCache[str, tuple[float, float]] = LruCache(MAX_ABANDONED_WAITS)
        self._average_output = INITIAL_OUTPUT_TOKENS
        self.heads = SharedHeads()
        self.stats = SchedulingStats()

    def add_replica(
        self,
        index: int,
        engine: str,
        reported_tokens: int | None,
        retain: RetainFunction | None = None,
    ) -> None:
        """Schedule the sessions of a replica, or continue after its engine was restarted.

        `retain`: passes the engine the time for which it keeps what it has cached for a request,
        once that has ended.
        """
        capacity = self._kv_tokens or reported_tokens
        fields: dict[str, object] = {"engine": engine, "replica": index}
        if capacity is None:
            remedy = "set --kv-tokens to the capacity of its KV cache in tokens"
            fields |= {"reason": "the engine does not report its KV cache", "remedy": remedy}
            _log.warning("session_scheduling_disabled", extra={"fields": fields})
        else:
            fields["capacity_tokens"] = capacity
            _log.info("session_scheduling_enabled", extra={"fields": fields})
        queue = self._queues.get(index)
        if queue is None:
            scheduler = SessionScheduler(capacity, self._limits, self._tool_times)
            queue = SessionQueue(scheduler, index, engine, self.stats, self._move_cold_turns)
            self._queues[index] = queue
            self._move_cold_turns()
        else:
            queue.restart(capacity)
        queue.retain = retain

    def fail_replica(self, index: int) -> None:
        """Let the turns that wait for a failed replica select another one."""
        if index in self._queues:
            self._queues[index].fail()

    def remove_replica(self, index: int) -> None:
        queue = self._queues.pop(index, None)
        if queue is not None:
            self._removed_expired_waits += queue.scheduler.counters.forced
            queue.fail()

    def drain(self) -> None:
        """Let the turns that wait run soon: no session between turns can return."""
        for queue in self._queues.values():
            queue.drain()

    def stop(self) -> None:
        for queue in self._queues.values():
            queue.stop()

    def _move_cold_turns(self) -> None:
        """Move turns that gain nothing by waiting for their replica to others with room."""
        if self._is_moving_turns or len(self._queues) == 1:
            return
        self._is_moving_turns = True
        try:
            queues = tuple(self._queues.values())
            move_cold_turns(queues, [one for one in queues if self.accepts(one.replica)])
        finally:
            self._is_moving_turns = False

    def queue(self, index: int) -> SessionQueue | None:
        """Return the queue of a replica; None if it was removed."""
        return self._queues.get(index)

    def has_waiting_turns(self, index: int) -> bool:
        """Return whether turns wait for a replica."""
        queue = self._queues.get(index)
        return queue is not None and queue.scheduler.waiting_turns > 0

    @property
    def has_delayed_turns(self) -> bool:
        """Whether turns wait for room, and one had to: more sessions are active than fit."""
        return any(one.counters.delayed and not one.is_suspended for _, one in self.schedulers())

    @property
    def expired_waits(self) -> int:
        """Turns that ran without room after the longest wait, with those of removed replicas."""
        current = sum(one.counters.forced for _, one in self.schedulers())
        return self._removed_expired_waits + current

    def schedulers(self) -> Iterator[tuple[int, SessionScheduler]]:
        for index, queue in self._queues.items():
            yield index, queue.scheduler

    def sessions(self) -> Iterator[tuple[int, SessionState]]:
        """Yield the replica and the state of each session."""
        for index, scheduler in self.schedulers():
            for state in scheduler.sessions(asyncio.get_running_loop().time()):
                yield index, state

    def begin_turn(self, profile: TurnProfile) -> "SessionTurn":
        """Return a turn that has not been sent to a replica."""
        parents = self._branches.get(profile.parent) if profile.parent is not None else None
        branches = self._branches.get(profile.session)
        relatives = tuple((branches or set()).union(parents or ()) - {profile.branch})
        if branches is None:
            self._branches.put(profile.session, {profile.branch})
        else:
            branches.add(profile.branch)
            if len(branches) > MAX_BRANCHES:
                branches &= {profile.branch, *filter(self._is_active, branches)}
        return SessionTurn(self, profile, relatives)

    def _is_active(self, branch: str) -> bool:
        return any(one.has_place(branch) or one.has_turns(branch) for _, one in self.schedulers())

    def move_away(self, branch: str, replica: int) -> None:
        """Record that a conversation continues on a replica: others do not expect it back."""
        for index, scheduler in self.schedulers():
            if index != replica:
                scheduler.move_away(branch, asyncio.get_running_loop().time())

    def release_session(self, session: str) -> None:
        """Free the places of a session that has ended, with all its conversations."""
        for branch in self._branches.pop(session) or ():
            for queue in self._queues.values():
                queue.release(branch)

    def release_branch(self, profile: TurnProfile) -> None:
        """Free the places of one conversation, unless other turns of it wait or run."""
        if any(one.has_turns(profile.branch) for _, one in self.schedulers()):
            return
        branches = self._branches.get(profile.session)
        if branches is not None:
            branches.discard(profile.branch)
            if not branches:
                self._branches.pop(profile.session)
        for queue in self._queues.values():
            queue.release(profile.branch)

    def abandon_wait(self, branch: str, arrived_at: float) -> None:
        """Record a turn that was cancelled while it waited: clients with short timeouts retry."""
        self._abandoned.put(branch, (arrived_at, asyncio.get_running_loop().time()))

    def continue_wait(self, branch: str) -> float | None:
        """Return since when a turn waits that arrives now as the retry of another one."""
        abandoned = self._abandoned.pop(branch)
        if abandoned is None:
            return None
        arrived_at, cancelled_at = abandoned
        is_retry = asyncio.get_running_loop().time() <= cancelled_at + RETRY_SECONDS
        return arrived_at if is_retry else None

    def expected_output_tokens(self, request: EngineRequest) -> int:
        """Return the tokens to reserve for the output: the client's prediction, or the average."""
        expected = request.expected_tokens
        tokens = round(self._average_output) if expected is None else expected
        return min(tokens, request.max_tokens)

    def observe_output(self, tokens: int) -> None:
        self._average_output += OUTPUT_SMOOTHING * (tokens - self._average_output)


class SessionTurn:
    """One turn of a session: it waits, runs in one or more engine requests, and ends.

    `replica`: the replica for which it waits or on which it runs; None before the first one.
    """

    __slots__ = (
        "_admission",
        "_arrived_at",
        "_meter",
        "_output_start",
        "_queue",
        "_relatives",
        "_request",
        "_turn",
        "profile",
        "replica",
    )

    def __init__(
        self, admission: SessionAdmission, profile: TurnProfile, relatives: tuple[str, ...]
    ) -> None:
        self._admission = admission
        self._relatives = relatives
        self.profile = profile
        self.replica: int | None = None
        self._queue: SessionQueue | None = None
        self._turn: Turn | None = None
        self._arrived_at: float | None = None  # when it first arrived at a replica
        self._output_start = 0  # the length of the first prompt
        self._meter: PrefillMeter | None = None
        self._request = ""  # the id of the last engine request

    async def enter(self, replica: int, request: EngineRequest) -> bool:
        """Wait until the turn may run on a replica.

        Returns at once if the turn already runs there. A turn that was migrated does not wait. A
        turn whose session has no place there runs on another replica that has room: see `replica`.
        Returns False if the replica failed or was removed while the turn waited.
        """
        self.replica = replica
        self._request = request.id
        queue = self._admission.queue(replica)
        if queue is None:
            return True  # it was removed, and serves its last requests
        if self._turn is not None and self._queue is queue:
            return True
        arrival = self._arrival(request)
        if self._turn is not None:
            self._leave()
            self._move(queue, queue.arrive(arrival, is_started=True))
            self._admission.move_away(self.profile.branch, replica)
            return True
        arrived_at = self._arrived_at
        if arrived_at is None:
            arrived_at = self._admission.continue_wait(self.profile.branch)
            self._output_start = len(request.prompt)
        turn = queue.arrive(arrival, arrived_at=arrived_at)
        self._arrived_at = turn.arrived_at
        self._move(queue, turn)
        if await queue.wait(turn, self._move):
            self._admission.move_away(self.profile.branch, self.replica)
            return True
        self._leave()
        return False

    def measure_prefill(self, request: EngineRequest, sink: TokenSink) -> TokenSink:
        """Return a sink that measures how fast the engine prefills a request."""
        turn = self._turn
        if self._queue is None or turn is None:
            return sink
        self._stop_meter()
        rate, tokens = self._queue.scheduler.prefill_rate, len(request.prompt)
        is_queued = not turn.has_room
        self._meter = PrefillMeter(rate, tokens, sink, turn.begin_output, is_queued=is_queued)
        return self._meter

    def finish(self, end: TurnEnd) -> None:
        """End a turn that is complete."""
        self._stop_meter()
        if self._turn is not None and self._queue is not None:
            self._admission.observe_output(end.context_tokens - self._output_start)
            self._queue.finish(self._turn, end, self._request)
            self._turn = None

    def cancel(self, *, release: bool) -> None:
        """End a turn that failed or was cancelled.

        `release`: its session gives up its place, unless it has other turns.
        """
        if release and self._arrived_at is not None and self._is_waiting:
            self._admission.abandon_wait(self.profile.branch, self._arrived_at)
        self._leave()
        if release:
            self._admission.release_branch(self.profile)

    def release_session(self) -> None:
        """Free the places of its session, which has ended."""
        self._admission.release_session(self.profile.session)

    @property
    def _is_waiting(self) -> bool:
        return self._turn is not None and self._turn.state == "waiting"

    def _move(self, queue: SessionQueue, turn: Turn) -> None:
        self._queue, self._turn, self.replica = queue, turn, queue.replica

    def _stop_meter(self) -> None:
        if self._meter is not None:
            self._meter.stop()
            self._meter = None

    def _leave(self) -> None:
        self._stop_meter()
        if self._turn is not None and self._queue is not None:
            self._queue.cancel(self._turn, self._request)
        self._turn = None

    def _arrival(self, request: EngineRequest) -> TurnArrival:
        profile, admission = self.profile, self._admission
        return TurnArrival(
            session=profile.branch,
            prompt_tokens=len(request.prompt),
            tenant=profile.tenant,
            head=profile.head,
            shared_tokens=admission.heads.measure(profile.head, profile.branch, request.prompt),
            expected_output_tokens=profile.choices * admission.expected_output_tokens(request),
            priority=profile.urgency,
            background=profile.background,
            relatives=self._relatives,
        )
