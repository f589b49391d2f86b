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

from dovetail.engines.engine import EngineCapabilities, EngineRequest, EngineHealth, TokenSink, TokenEngine
from dovetail.engines.token_stream import collect_token_ids
from dovetail.routing.replica import Noted, Worker

SESSIONS = 1 << 16  # whose replica is remembered
LOOK_EVERY = 10.0  # seconds
ABOUT_EQUAL = 4  # requests by which one replica may be busier than another, where pools agree

#: Makes the request that is expected next, if there is any.
Expected = Callable[[], Awaitable[EngineRequest | None]]

_log = logging.getLogger(__name__)


class Pool:
    """A token engine made of replicas. They are alike: what one can do, all can.

    `agreeing` pools of several processes send a new session to the same replica, as long as each of
    them finds it about as busy as the others: they do not see each other's work.
    """

    def __init__(self, engines: Sequence[TokenEngine], *, agreeing: bool = False) -> None:
        self.workers = tuple(Worker(engine, at) for at, engine in enumerate(engines))
        self.name = engines[0].name
        self._agreeing = agreeing
        self._homes: OrderedDict[str, Worker] = OrderedDict()
        self._warming: dict[Worker, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self.warmed = 0  # prompts that were read ahead

    @property
    def abilities(self) -> EngineCapabilities:
        """What every replica that can be asked can do."""
        all_of = [worker.engine.capabilities for worker in self._candidates()]
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
    def up(self) -> int:
        """How many replicas can be asked."""
        return sum(worker.up for worker in self.workers)

    async def recovered(self, patience: float) -> bool:
        """Whether a replica can be asked, now or within so many seconds."""
        back = [worker.recovery for worker in self.workers if worker.recovery is not None]
        if not self.up and back and patience > 0:
            await asyncio.wait(back, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        return self.up > 0

    async def start(self) -> None:
        """Makes the replicas ready. One of them is enough; the others are looked after."""
        faults = await asyncio.gather(*(worker.start() for worker in self.workers))
        told = [fault for fault in faults if fault is not None]
        for worker, fault in zip(self.workers, faults, strict=True):
            if fault is not None and len(faults) > 1:  # of a lone one the error below tells
                worker.fall(fault)
        if len(told) == len(self.workers):
            await self.stop()
            raise told[0]
        if len(self.workers) > 1 and not self.abilities.local:
            self._looking = asyncio.create_task(self._look_after())

    async def generate(
        self,
        request: EngineRequest,
        listener: TokenSink,
        taken: Callable[[int], None] = lambda replica: None,
    ) -> None:
        """The answer of one replica, whose number is told. Raises what that raises."""
        worker = self._choose(request.session)
        taken(worker.number)
        await self._make_way(worker)
        if self._looking is not None:
            listener = Noted(worker, listener)
        with worker.working():
            await worker.engine.generate(request, listener)

    def warm(self, session: str | None, expected: Expected) -> None:
        """Has a prompt read ahead of its request, until its replica has something better to do."""
        worker = self._choose(session)
        before = self._warming.get(worker)
        if before is not None:
            before.cancel()
        self._warming[worker] = asyncio.create_task(self._warm(worker, expected))

    async def health(self) -> EngineHealth:
        """Ready as long as one replica is."""
        states = await asyncio.gather(*(worker.health() for worker in self.workers))
        if len(states) == 1:
            return states[0]
        ready = sum(state.ready for state in states)
        told = [f"{at}: {state.detail}" for at, state in enumerate(states) if not state.ready]
        detail = "; ".join([f"{ready} of {len(states)} replicas are ready", *told])
        return EngineHealth(ready > 0, detail, {"replicas": [state.facts or {} for state in states]})

    async def stop(self) -> None:
        tasks = [*self._warming.values(), *([self._looking] if self._looking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self.workers))

    async def _look_after(self) -> None:
        """Looks at replicas that hang: their streams could go on elsewhere."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await asyncio.gather(*(worker.look() for worker in self.workers))

    def _choose(self, session: str | None) -> Worker:
        if len(self.workers) == 1:
            return self.workers[0]
        home = self._homes.get(session) if session is not None else None
        if home is None or not home.up or home.shunned:
            home = self._first_home(session)
        if session is not None:
            self._homes[session] = home
            self._homes.move_to_end(session)
            if len(self._homes) > SESSIONS:
                self._homes.popitem(last=False)
        return home

    def _first_home(self, session: str | None) -> Worker:
        """The least busy; of those that are about as busy, the one that the session's name picks.

        The name picks the same one everywhere, and another only where that is down.
        """
        candidates = self._candidates()
        least = min(candidates, key=lambda worker: (worker.shunned, worker.busy))
        if session is None or not self._agreeing:
            return least
        near = [
            worker
            for worker in candidates
            if worker.shunned == least.shunned and worker.busy <= least.busy + ABOUT_EQUAL
        ]
        return max(near, key=lambda worker: _affinity(session, worker.number))

    def _candidates(self) -> Sequence[Worker]:
        """Those that are up. Where none is, any of them can say best what is wrong."""
        return [worker for worker in self.workers if worker.up] or self.workers

    async def _make_way(self, worker: Worker) -> None:
        """Real work ends what was only done ahead of time."""
        task = self._warming.pop(worker, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _warm(self, worker: Worker, expected: Expected) -> None:
        try:
            request = await expected()
            if request is None or worker.busy or not worker.up:
                return
            with worker.working():
                await collect_token_ids(worker.engine, request)
            self.warmed += 1
        except Exception as error:  # nobody waits for it, and nobody is the worse for it
            _log.info(
                "not_warmed", extra={"fields": {"reason": f"{type(error).__name__}: {error}"}}
            )
        finally:
            if self._warming.get(worker) is asyncio.current_task():
                del self._warming[worker]


def _affinity(session: str, replica: int) -> bytes:
    """How much a session is drawn to a replica: in every process the same."""
    named = f"{replica} {session}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(named, digest_size=8).digest()
