"""The replicas of a model behind one engine: each request goes to one of them.

A session comes back to the replica that has its prefix cached; a new one goes to the least busy. A
replica that is down is passed over. Nothing is tried twice here: who asked knows what was already
said, and asks again with it.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenEngine,
    TokenSink,
)
from dovetail.engines.token_stream import collect_token_ids
from dovetail.routing.replica import ActivitySink, Replica

MAX_SESSION_HOMES = 1 << 16  # whose replica is remembered
STALL_CHECK_INTERVAL_SECONDS = 10.0  # seconds
MAX_LOAD_DIFFERENCE = (
    4  # requests by which one replica may be busier than another, where pools agree
)

#: Makes the request that is expected next, if there is any.
RequestFactory = Callable[[], Awaitable[EngineRequest | None]]

_log = logging.getLogger(__name__)


class ReplicaPool:
    """A token engine made of replicas. They are alike: what one can do, all can.

    `agreeing` pools of several processes send a new session to the same replica, as long as each of
    them finds it about as busy as the others: they do not see each other's work.
    """

    def __init__(self, engines: Sequence[TokenEngine], *, consistent: bool = False) -> None:
        self.replicas = tuple(Replica(engine, at) for at, engine in enumerate(engines))
        self.name = engines[0].name
        self._consistent = consistent
        self._session_homes: OrderedDict[str, Replica] = OrderedDict()
        self._warming: dict[Replica, asyncio.Task[None]] = {}
        self._stall_check: asyncio.Task[None] | None = None
        self.warmed_prompts = 0  # prompts that were read ahead

    @property
    def capabilities(self) -> EngineCapabilities:
        """What every replica that can be asked can do."""
        all_of = [worker.engine.capabilities for worker in self._available_replicas()]
        first, *others = all_of
        windows = [one.context_length for one in all_of if one.context_length is not None]
        return EngineCapabilities(
            constraints=tuple(
                syntax
                for syntax in first.constraints
                if all(syntax in other.constraints for other in others)
            ),
            logprobs=all(one.logprobs for one in all_of),
            cached_tokens=all(one.cached_tokens for one in all_of),
            context_length=min(windows, default=None),
            local=first.local,
            constrains_after_reasoning=any(one.constrains_after_reasoning for one in all_of),
        )

    @property
    def available_count(self) -> int:
        """How many replicas can be asked."""
        return sum(worker.is_available for worker in self.replicas)

    async def wait_available(self, timeout_seconds: float) -> bool:
        """Whether a replica can be asked, now or within so many seconds."""
        back = [
            worker.recovery_task for worker in self.replicas if worker.recovery_task is not None
        ]
        if not self.available_count and back and timeout_seconds > 0:
            await asyncio.wait(back, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        return self.available_count > 0

    async def start(self) -> None:
        """Makes the replicas ready. One of them is enough; the others are looked after."""
        faults = await asyncio.gather(*(worker.start() for worker in self.replicas))
        told = [fault for fault in faults if fault is not None]
        for worker, fault in zip(self.replicas, faults, strict=True):
            if fault is not None and len(faults) > 1:  # of a lone one the error below tells
                worker.mark_down(fault)
        if len(told) == len(self.replicas):
            await self.stop()
            raise told[0]
        if len(self.replicas) > 1 and not self.capabilities.local:
            self._stall_check = asyncio.create_task(self._check_stalls())

    async def generate(
        self,
        request: EngineRequest,
        sink: TokenSink,
        on_replica: Callable[[int], None] = lambda replica: None,
    ) -> None:
        """The answer of one replica, whose number is told. Raises what that raises."""
        worker = self._select_replica(request.session)
        on_replica(worker.index)
        await self._cancel_warming(worker)
        if self._stall_check is not None:
            sink = ActivitySink(worker, sink)
        with worker.track_request():
            await worker.engine.generate(request, sink)

    def warm(self, session: str | None, create_request: RequestFactory) -> None:
        """Has a prompt read ahead of its request, until its replica has something better to do."""
        worker = self._select_replica(session)
        before = self._warming.get(worker)
        if before is not None:
            before.cancel()
        self._warming[worker] = asyncio.create_task(self._warm(worker, create_request))

    async def health(self) -> EngineHealth:
        """Ready as long as one replica is."""
        states = await asyncio.gather(*(worker.health() for worker in self.replicas))
        if len(states) == 1:
            return states[0]
        ready = sum(state.ready for state in states)
        told = [f"{at}: {state.detail}" for at, state in enumerate(states) if not state.ready]
        detail = "; ".join([f"{ready} of {len(states)} replicas are ready", *told])
        return EngineHealth(
            ready > 0, detail, {"replicas": [state.facts or {} for state in states]}
        )

    async def stop(self) -> None:
        tasks = [*self._warming.values(), *([self._stall_check] if self._stall_check else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self.replicas))

    async def _check_stalls(self) -> None:
        """Looks at replicas that hang: their streams could go on elsewhere."""
        while True:
            await asyncio.sleep(STALL_CHECK_INTERVAL_SECONDS)
            await asyncio.gather(*(worker.check_stalled() for worker in self.replicas))

    def _select_replica(self, session: str | None) -> Replica:
        if len(self.replicas) == 1:
            return self.replicas[0]
        home = self._session_homes.get(session) if session is not None else None
        if home is None or not home.is_available or home.in_backoff:
            home = self._assign_home(session)
        if session is not None:
            self._session_homes[session] = home
            self._session_homes.move_to_end(session)
            if len(self._session_homes) > MAX_SESSION_HOMES:
                self._session_homes.popitem(last=False)
        return home

    def _assign_home(self, session: str | None) -> Replica:
        """The least busy; of those that are about as busy, the one that the session's name picks.

        The name picks the same one everywhere, and another only where that is down.
        """
        candidates = self._available_replicas()
        least = min(candidates, key=lambda worker: (worker.in_backoff, worker.active_requests))
        if session is None or not self._consistent:
            return least
        near = [
            worker
            for worker in candidates
            if worker.in_backoff == least.in_backoff
            and worker.active_requests <= least.active_requests + MAX_LOAD_DIFFERENCE
        ]
        return max(near, key=lambda worker: _affinity_hash(session, worker.index))

    def _available_replicas(self) -> Sequence[Replica]:
        """Those that are up. Where none is, any of them can say best what is wrong."""
        return [worker for worker in self.replicas if worker.is_available] or self.replicas

    async def _cancel_warming(self, replica: Replica) -> None:
        """Real work ends what was only done ahead of time."""
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
        except Exception as error:  # nobody waits for it, and nobody is the worse for it
            _log.info(
                "not_warmed", extra={"fields": {"reason": f"{type(error).__name__}: {error}"}}
            )
        finally:
            if self._warming.get(replica) is asyncio.current_task():
                del self._warming[replica]


def _affinity_hash(session: str, replica: int) -> bytes:
    """How much a session is drawn to a replica: in every process the same."""
    named = f"{replica} {session}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(named, digest_size=8).digest()
