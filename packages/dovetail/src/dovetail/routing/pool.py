"""A pool of replicas of one model that acts as a single engine.

The router assigns requests to replicas: a session returns to the replica that has its prefix
cached; a new session goes where its prefix or the lowest load is. Replicas that are down are
skipped. The pool never retries: the caller knows which tokens were already generated, and sends a
new request that continues from there.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    RetainingEngine,
    TokenEngine,
    TokenSink,
)
from dovetail.routing.prefix_index import (
    LocalIndex,
    PrefixIndex,
    PrefixMatch,
    salted_request,
)
from dovetail.routing.replica import (
    DEFAULT_HEALTH_CHECKS,
    HealthCheckOptions,
    Replica,
    TrackedSink,
    shared_capabilities,
)
from dovetail.routing.router import Assignment, RoutedRequest, Router
from dovetail.routing.session_admission import SessionAdmission, SessionTurn
from dovetail.routing.warming import PromptWarmer, RequestFactory

#: How long a turn whose replica failed while it waited waits for the recovery of a replica.
MAX_RECOVERY_WAIT_SECONDS = 10.0

_log = logging.getLogger(__name__)


class Membership(Protocol):
    """Changes the replicas of a pool while it runs.

    `is_shared`: other processes have pools of the same replicas.
    """

    is_shared: bool

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def add(self, url: str) -> Replica:
        """Add a replica. Raises `ValueError` with the reason if it cannot be added."""

    async def remove(self, url: str) -> Replica:
        """Remove a replica. Raises `ValueError` with the reason if it cannot be removed."""


class ReplicaPool:
    """A token engine that consists of replicas of one model with the same capabilities.

    `router`: assigns requests to replicas.
    `index`: knows what the replicas have cached. Pools of a single replica do not use it.
    `urls`: the URLs of remote engines, in the order of `engines`.
    `sessions`: schedules sessions; None if requests are sent as they arrive.
    `membership`: changes the replicas while the pool runs; None for local engines.
    """

    def __init__(
        self,
        engines: Sequence[TokenEngine],
        *,
        router: Router | None = None,
        index: PrefixIndex | None = None,
        urls: Sequence[str | None] = (),
        health_checks: HealthCheckOptions = DEFAULT_HEALTH_CHECKS,
        sessions: SessionAdmission | None = None,
    ) -> None:
        self.sessions = sessions
        if sessions is not None:
            sessions.accepts = self._accepts_turns
        self._health_checks = health_checks
        self.router = router or Router()
        self.index: PrefixIndex = index or LocalIndex()
        self._next_index = 0
        self.replicas: tuple[Replica, ...] = ()
        for engine, url in zip(engines, urls or [None] * len(engines), strict=True):
            self.replicas += (self._create_replica(engine, url),)
        self.name = engines[0].name
        self._warmer = PromptWarmer(self.index)
        self._removals: set[asyncio.Task[None]] = set()
        self._index_updates: set[asyncio.Task[None]] = set()
        self._stall_check: asyncio.Task[None] | None = None
        self.membership: Membership | None = None

    @property
    def warmed_prompts(self) -> int:
        """The number of prompts that were prefilled ahead."""
        return self._warmer.warmed_prompts

    @property
    def prefills_ahead(self) -> bool:
        """Whether next prompts are prefilled without a request for it: sessions had to wait.

        While all sessions fit, session scheduling changes nothing.
        """
        return self.sessions is not None and self.sessions.has_delayed_turns

    @property
    def capabilities(self) -> EngineCapabilities:
        """The capabilities that all available replicas share."""
        if len(self.replicas) == 1:
            return self.replicas[0].engine.capabilities
        supported = [replica.engine.capabilities for replica in self._available_replicas()]
        return shared_capabilities(supported)

    @property
    def available_count(self) -> int:
        """The number of replicas that accept requests."""
        return sum(replica.is_available for replica in self.replicas)

    async def wait_available(self, timeout_seconds: float) -> bool:
        """Return whether a replica accepts requests, now or within `timeout_seconds`."""
        recoveries = [
            replica.recovery_task for replica in self.replicas if replica.recovery_task is not None
        ]
        if not self.available_count and recoveries and timeout_seconds > 0:
            await asyncio.wait(
                recoveries, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        return self.available_count > 0

    async def start(self) -> None:
        """Start the replicas. One is enough; failed replicas recover in the background."""
        faults = await asyncio.gather(*(replica.start() for replica in self.replicas))
        await asyncio.gather(*(self.index.add(one.index, one.url) for one in self.replicas))
        failures = [fault for fault in faults if fault is not None]
        for replica, fault in zip(self.replicas, faults, strict=True):
            if fault is not None and len(faults) > 1:  # the error of a single replica is raised
                replica.mark_down(fault)
            self._schedule_sessions(replica)
        if len(failures) == len(self.replicas):
            await self.stop()
            raise failures[0]
        self._watch_stalls()
        if self.membership is not None:
            self.membership.start()

    async def generate(
        self,
        request: EngineRequest,
        sink: TokenSink,
        on_replica: Callable[[int], None] = lambda replica: None,
        turn: SessionTurn | None = None,
    ) -> None:
        """Generate on one replica and pass its index to `on_replica`.

        `turn`: with session scheduling, the turn that the request belongs to. It waits here.
        Errors of the replica propagate.
        """
        if turn is not None:
            replica, assignment, match = await self._assign_turn(request, turn)
            sink = turn.measure_prefill(request, sink)
        elif len(self.replicas) == 1 and self.replicas[0].url is None:  # there will not be others
            await self._generate_on(self.replicas[0], request, sink, on_replica)
            return
        else:
            replica, assignment, match = await self._assign(request)

        def finish_prefill() -> None:
            assignment.finish_prefill()
            self.index.confirm_prefill(replica.index, match)

        tracked = TrackedSink(replica, sink, finish_prefill)
        try:
            await self._generate_on(replica, request, tracked, on_replica)
        finally:
            assignment.finish(tracked.output_tokens if tracked.is_finished else None)

    def release_session(self, session: str | None) -> None:
        """Discard what is held for a session that has ended."""
        if session is not None:
            self.router.release_session(session, monotonic())
            self.index.release_session(session)
            if self.sessions is not None:
                self.sessions.release_session(session)

    def warm(self, session: str | None, create_request: RequestFactory) -> None:
        """Prefill a prompt before its request arrives.

        It is cancelled when the replica receives a request. While turns wait for the replica, it
        would evict the prefix of another session, and is not done.
        """
        replica = self.replicas[0]
        if len(self.replicas) > 1:
            unknown = PrefixMatch(None)
            replica, assignment = self._route(RoutedRequest(0, session, 0), unknown)
            assignment.finish()
        if self.sessions is None or not self.sessions.has_waiting_turns(replica.index):
            self._warmer.warm(replica, create_request)

    async def health(self) -> EngineHealth:
        """Return the health of the pool, which is ready as long as one replica is ready."""
        replicas = self.replicas
        states = await asyncio.gather(*(replica.health() for replica in replicas))
        if len(states) == 1:
            return states[0]
        ready = sum(state.ready for state in states)
        not_ready = [
            f"replica {replica.index}: {state.detail}"
            for replica, state in zip(replicas, states, strict=True)
            if not state.ready
        ]
        detail = "; ".join([f"{ready} of {len(states)} replicas are ready", *not_ready])
        return EngineHealth(
            ready > 0, detail, {"replicas": [state.facts or {} for state in states]}
        )

    async def add_replica(self, engine: TokenEngine, url: str | None = None) -> Replica:
        """Add a replica. One that cannot be started recovers in the background.

        It gets no requests before it has been started, which takes long if nothing responds.
        """
        replica = self._create_replica(engine, url)
        fault = await replica.start()
        self.replicas += (replica,)
        if fault is not None:
            replica.mark_down(fault)
        self._schedule_sessions(replica)
        await self.index.add(replica.index, url)
        self._watch_stalls()
        _log.info(
            "replica_added", extra={"fields": {"engine": self.name, "replica": replica.index}}
        )
        return replica

    def remove_replica(self, replica: Replica) -> None:
        """Send no more requests to a replica, and stop it after its active requests.

        Raises `ValueError` for the only replica, without which no request could be served.
        """
        if replica not in self.replicas:
            raise ValueError(f"unknown replica {replica.index}")
        if len(self.replicas) == 1:
            raise ValueError("the only replica cannot be removed")
        self.replicas = tuple(one for one in self.replicas if one is not replica)
        self.router.forget(replica.index)
        if self.sessions is not None:
            self.sessions.remove_replica(replica.index)
        task = asyncio.create_task(self._retire(replica))
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)
        fields = {"engine": self.name, "replica": replica.index}
        _log.info("replica_removed", extra={"fields": fields})

    async def stop(self) -> None:
        if self.membership is not None:
            await self.membership.stop()
        await self._warmer.stop()
        if self.sessions is not None:
            self.sessions.stop()
        tasks = [*self._removals, *self._index_updates]
        tasks += [self._stall_check] if self._stall_check else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica.stop() for replica in self.replicas))
        await self.index.stop()

    def _create_replica(self, engine: TokenEngine, url: str | None) -> Replica:
        replica = Replica(engine, self._next_index, self._health_checks, url=url)
        replica.on_recovered = self._restore_index
        if self.sessions is not None:
            replica.on_failed = self._fail_sessions
        self.router.load(replica.index).name = url or ""
        self._next_index += 1
        return replica

    def _restore_index(self, replica: Replica) -> None:
        """Discard what a recovered replica had cached: its engine was probably restarted."""
        self.router.forget(replica.index)
        self._schedule_sessions(replica)
        task = asyncio.create_task(self.index.add(replica.index, replica.url))
        self._index_updates.add(task)
        task.add_done_callback(self._index_updates.discard)

    def _schedule_sessions(self, replica: Replica) -> None:
        """Schedule the sessions of a replica with an empty KV cache."""
        if self.sessions is not None:
            engine = replica.engine
            retain = engine.retain if isinstance(engine, RetainingEngine) else None
            reported = engine.capabilities.kv_tokens
            self.sessions.add_replica(replica.index, self.name, reported, retain)

    def _fail_sessions(self, replica: Replica) -> None:
        if self.sessions is not None:
            self.sessions.fail_replica(replica.index)

    async def _retire(self, replica: Replica) -> None:
        await self._warmer.cancel(replica)
        await self.index.remove(replica.index)
        try:
            await replica.wait_idle()
        finally:
            await replica.stop()

    def _watch_stalls(self) -> None:
        if self._stall_check is None and len(self.replicas) > 1 and not self.capabilities.local:
            self._stall_check = asyncio.create_task(self._check_stalls())

    async def _check_stalls(self) -> None:
        """Mark stalled replicas as down, so that their streams can be migrated."""
        while True:
            await asyncio.sleep(self._health_checks.stall_check_interval_seconds)
            await asyncio.gather(*(replica.check_stalled() for replica in self.replicas))

    async def _generate_on(
        self,
        replica: Replica,
        request: EngineRequest,
        sink: TokenSink,
        on_replica: Callable[[int], None],
    ) -> None:
        on_replica(replica.index)
        await self._warmer.cancel(replica)
        try:
            with replica.track_request():
                await replica.engine.generate(salted_request(self.index, request), sink)
        finally:
            if request.ends_session:
                self.release_session(request.session)

    async def _assign(self, request: EngineRequest) -> tuple[Replica, Assignment, PrefixMatch]:
        match = await self.index.find(request)
        replica, assignment = self._route(_routed_request(request), match)
        self.index.record(replica.index, match)
        return replica, assignment, match

    async def _assign_turn(
        self, request: EngineRequest, turn: SessionTurn
    ) -> tuple[Replica, Assignment, PrefixMatch]:
        """Assign a turn and wait until it may run, perhaps on another replica that has room.

        It is assigned again if its replica fails, after the recovery if there is no other one.
        """
        routed = _routed_request(request)
        while True:
            match = await self.index.find(request)
            replica, assignment = self._route(routed, match)
            try:
                is_admitted = await turn.enter(replica.index, request)
            except BaseException:
                assignment.finish()
                raise
            if not is_admitted or turn.replica != replica.index:
                assignment.finish()
                others = [one for one in self.replicas if one.index == turn.replica]
                if not is_admitted or not others:
                    turn.cancel(release=False)
                    await self.wait_available(MAX_RECOVERY_WAIT_SECONDS)
                    continue
                replica, assignment = self._route(routed, match, others)
            self.index.record(replica.index, match)
            return replica, assignment, match

    def _route(
        self, request: RoutedRequest, match: PrefixMatch, replicas: Sequence[Replica] = ()
    ) -> tuple[Replica, Assignment]:
        """Assign a request to one of some replicas; by default, to one that is available."""
        candidates = {one.index: one for one in replicas or self._available_replicas()}
        assignment = self.router.assign(
            request,
            [(index, replica.in_backoff) for index, replica in candidates.items()],
            match.overlaps,
            monotonic(),
        )
        return candidates[assignment.replica], assignment

    def _accepts_turns(self, index: int) -> bool:
        """Return whether a replica may take over turns that wait for other replicas."""
        return any(
            one.index == index and one.is_available and not one.in_backoff for one in self.replicas
        )

    def _available_replicas(self) -> Sequence[Replica]:
        """Return the replicas that are up; all if none is, because their errors give the reason."""
        return [replica for replica in self.replicas if replica.is_available] or self.replicas


def _routed_request(request: EngineRequest) -> RoutedRequest:
    return RoutedRequest(
        len(request.prompt), request.session, request.expected_tokens, request.max_tokens
    )
