"""A pool of replicas of one model that acts as a single engine.

A session returns to the replica that has its prefix cached. A new session goes to the least busy
replica. Replicas that are down are skipped. The pool never retries: the caller knows which tokens
were already generated, and sends a new request that continues from there.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenEngine,
    TokenSink,
)
from dovetail.engines.token_stream import collect_token_ids
from dovetail.routing.replica import (
    DEFAULT_HEALTH_CHECKS,
    ActivitySink,
    HealthCheckOptions,
    Replica,
)
from dovetail.storage.lru import LruCache

MAX_SESSION_HOMES = 1 << 16
#: How many more active requests than the least busy replica a session's consistent home may have.
MAX_LOAD_DIFFERENCE = 4

#: Creates the request that is expected next; returns None if there is none.
RequestFactory = Callable[[], Awaitable[EngineRequest | None]]

_log = logging.getLogger(__name__)


class ReplicaPool:
    """A token engine that consists of replicas of one model with the same capabilities.

    `consistent`: the pools of several processes send a new session to the same replica, as long as
    each of them finds that replica about as busy as the others. The processes do not see each
    other's requests.
    """

    def __init__(
        self,
        engines: Sequence[TokenEngine],
        *,
        consistent: bool = False,
        health_checks: HealthCheckOptions = DEFAULT_HEALTH_CHECKS,
    ) -> None:
        self.replicas = tuple(
            Replica(engine, index, health_checks) for index, engine in enumerate(engines)
        )
        self._health_checks = health_checks
        self.name = engines[0].name
        self._consistent = consistent
        self._session_homes: LruCache[str, Replica] = LruCache(MAX_SESSION_HOMES)
        self._warming: dict[Replica, asyncio.Task[None]] = {}
        self._stall_check: asyncio.Task[None] | None = None
        self.warmed_prompts = 0

    @property
    def capabilities(self) -> EngineCapabilities:
        """The capabilities that all available replicas share."""
        if len(self.replicas) == 1:
            return self.replicas[0].engine.capabilities
        supported = [replica.engine.capabilities for replica in self._available_replicas()]
        first, *others = supported
        if not others:
            return first
        lengths = [one.context_length for one in supported if one.context_length is not None]
        return EngineCapabilities(
            constraints=tuple(
                syntax
                for syntax in first.constraints
                if all(syntax in other.constraints for other in others)
            ),
            logprobs=all(one.logprobs for one in supported),
            cached_tokens=all(one.cached_tokens for one in supported),
            context_length=min(lengths, default=None),
            sampling=frozenset.intersection(*(one.sampling for one in supported)),
            local=first.local,
            constrains_after_reasoning=any(one.constrains_after_reasoning for one in supported),
        )

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
        failures = [fault for fault in faults if fault is not None]
        for replica, fault in zip(self.replicas, faults, strict=True):
            if fault is not None and len(faults) > 1:  # the error of a single replica is raised
                replica.mark_down(fault)
        if len(failures) == len(self.replicas):
            await self.stop()
            raise failures[0]
        if len(self.replicas) > 1 and not self.capabilities.local:
            self._stall_check = asyncio.create_task(self._check_stalls())

    async def generate(
        self,
        request: EngineRequest,
        sink: TokenSink,
        on_replica: Callable[[int], None] = lambda replica: None,
    ) -> None:
        """Generate on one replica and pass its index to `on_replica`.

        Errors of the replica propagate.
        """
        replica = self._select_replica(request.session)
        on_replica(replica.index)
        await self._cancel_warming(replica)
        if self._stall_check is not None:
            sink = ActivitySink(replica, sink)
        try:
            with replica.track_request():
                await replica.engine.generate(request, sink)
        finally:
            if request.ends_session:
                self.release_session(request.session)

    def release_session(self, session: str | None) -> None:
        """Discard the home of a session that has ended."""
        if session is not None:
            self._session_homes.pop(session)

    def warm(self, session: str | None, create_request: RequestFactory) -> None:
        """Prefill a prompt before its request arrives.

        It is cancelled when the replica receives a request.
        """
        replica = self._select_replica(session)
        previous = self._warming.get(replica)
        if previous is not None:
            previous.cancel()
        self._warming[replica] = asyncio.create_task(self._warm(replica, create_request))

    async def health(self) -> EngineHealth:
        """Return the health of the pool, which is ready as long as one replica is ready."""
        states = await asyncio.gather(*(replica.health() for replica in self.replicas))
        if len(states) == 1:
            return states[0]
        ready = sum(state.ready for state in states)
        not_ready = [
            f"replica {index}: {state.detail}"
            for index, state in enumerate(states)
            if not state.ready
        ]
        detail = "; ".join([f"{ready} of {len(states)} replicas are ready", *not_ready])
        return EngineHealth(
            ready > 0, detail, {"replicas": [state.facts or {} for state in states]}
        )

    async def stop(self) -> None:
        tasks = [*self._warming.values(), *([self._stall_check] if self._stall_check else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica.stop() for replica in self.replicas))

    async def _check_stalls(self) -> None:
        """Mark stalled replicas as down, so that their streams can be migrated."""
        while True:
            await asyncio.sleep(self._health_checks.stall_check_interval_seconds)
            await asyncio.gather(*(replica.check_stalled() for replica in self.replicas))

    def _select_replica(self, session: str | None) -> Replica:
        if len(self.replicas) == 1:
            return self.replicas[0]
        home = self._session_homes.peek(session) if session is not None else None
        if home is None or not home.is_available or home.in_backoff:
            home = self._assign_home(session)
        if session is not None:
            self._session_homes.put(session, home)
        return home

    def _assign_home(self, session: str | None) -> Replica:
        """Return the least busy replica; among similarly busy ones, the one with the highest hash.

        The hash depends on the session and selects the same replica in every process. It selects
        another one only if that replica is down.
        """
        candidates = self._available_replicas()
        preferred = min(
            candidates, key=lambda replica: (replica.in_backoff, replica.active_requests)
        )
        if session is None or not self._consistent:
            return preferred
        similar = [
            replica
            for replica in candidates
            if replica.in_backoff == preferred.in_backoff
            and replica.active_requests <= preferred.active_requests + MAX_LOAD_DIFFERENCE
        ]
        return max(similar, key=lambda replica: _affinity_hash(session, replica.index))

    def _available_replicas(self) -> Sequence[Replica]:
        """Return the replicas that are up; all if none is, because their errors give the reason."""
        return [replica for replica in self.replicas if replica.is_available] or self.replicas

    async def _cancel_warming(self, replica: Replica) -> None:
        """Stop warming a replica: requests take precedence."""
        task = self._warming.pop(replica, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _warm(self, replica: Replica, create_request: RequestFactory) -> None:
        try:
            request = await create_request()
            if request is None or replica.active_requests or not replica.is_available:
                return
            with replica.track_request():
                await collect_token_ids(replica.engine, request)
            self.warmed_prompts += 1
        except Exception as error:  # warming is optional: no request waits for it
            _log.info(
                "warming_failed", extra={"fields": {"reason": f"{type(error).__name__}: {error}"}}
            )
        finally:
            if self._warming.get(replica) is asyncio.current_task():
                del self._warming[replica]


def _affinity_hash(session: str, replica: int) -> bytes:
    """Return a replica's weight for a session (rendezvous hashing), the same in every process."""
    key = f"{replica} {session}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(key, digest_size=8).digest()
