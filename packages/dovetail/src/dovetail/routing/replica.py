"""One replica of a model: its engine, how busy it is, and whether it can be asked.

A replica that failed is asked for nothing more until it has shown that it is back. A process of
ours is started again; a server of somebody else's is looked at until it answers.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from dovetail.engines.engine import EngineHealth, TokenSink, TokenDelta, TokenEngine, check_health
from dovetail_model import DovetailError, EngineError, EngineTimeout, EngineUnavailable

#: Seconds before each look at a replica that is down; the last one is repeated.
PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
PAUSES_BESIDE = (0.0, 0.1, 0.2, 0.5, 1.0)  # to look costs next to nothing
HEALTH_PATIENCE = 3.0
QUIET = 30.0  # seconds in which a replica that works should say something
SHUNNED = 1.0

_log = logging.getLogger(__name__)


class Worker:
    """One replica."""

    __slots__ = (
        "_wanted",
        "busy",
        "engine",
        "heard",
        "number",
        "recovery",
        "refused",
        "restarts",
        "up",
    )

    def __init__(self, engine: TokenEngine, number: int) -> None:
        self.engine = engine
        self.number = number
        self.up = True
        self.busy = 0
        self.heard = 0.0  # when it last began or said something
        self.restarts = 0
        self.refused = float("-inf")  # when it last had no room, or failed
        self._wanted = True
        self.recovery: asyncio.Task[None] | None = None  # ends when the replica is back

    async def start(self) -> DovetailError | None:
        """Makes the replica ready, or says why it is not."""
        self._wanted = True
        try:
            await self.engine.start()
        except Exception as error:
            return _told(error)
        return None

    @contextmanager
    def working(self) -> Iterator[None]:
        """One generation, for as long as it lasts. A failure of the engine takes it down."""
        self.busy += 1
        self.heard = monotonic()
        try:
            yield
        except (EngineUnavailable, EngineTimeout) as fault:
            self.fall(fault)
            raise
        except EngineError:
            self.refused = monotonic()
            raise
        finally:
            self.busy -= 1

    @property
    def shunned(self) -> bool:
        """Whether others should be asked first: a moment ago it had no room, or failed."""
        return monotonic() - self.refused < SHUNNED

    def fall(self, fault: DovetailError) -> None:
        """It is down, and somebody sees to it that it comes back."""
        if not self._wanted:
            return  # it was stopped while it worked
        if self.up:
            _log.warning("replica_down", extra=self._fields(fault))
        self.up = False
        if self.recovery is None or self.recovery.done():
            self.recovery = asyncio.create_task(self._recover())

    async def health(self) -> EngineHealth:
        return await check_health(self.engine, HEALTH_PATIENCE)

    async def look(self) -> None:
        """Takes a replica down that works, says nothing, and is not there when it is asked.

        What it still had to do breaks off, and goes on elsewhere.
        """
        if not (self.up and self.busy) or monotonic() - self.heard < QUIET:
            return
        if (await self.health()).ready or (await self.health()).ready:
            self.heard = monotonic()
            return
        self.fall(EngineUnavailable("it works, and does not answer"))
        await self.engine.stop()

    async def stop(self) -> None:
        self._wanted = False
        if self.recovery is not None:
            self.recovery.cancel()
            await asyncio.gather(self.recovery, return_exceptions=True)
        await self.engine.stop()

    async def _recover(self) -> None:
        """Looks again and again, ever more rarely."""
        pauses = PAUSES_BESIDE if self.engine.capabilities.supervised_elsewhere else PAUSES
        for looks in range(1 << 30):
            await asyncio.sleep(pauses[min(looks, len(pauses) - 1)])
            try:
                await self._revive()
            except Exception as error:
                _log.info("replica_still_down", extra=self._fields(_told(error)))
                continue
            self.up = True
            _log.warning("replica_up", extra=self._fields(None))
            return

    async def _revive(self) -> None:
        """A process that is gone is started anew; a server elsewhere is asked who it is now."""
        if self.engine.capabilities.local:
            if (await self.health()).ready:
                return
            self.restarts += 1
            await self.engine.stop()
        await self.engine.start()
        state = await self.health()
        if not state.ready:
            raise EngineUnavailable(state.detail or "not ready")

    def _fields(self, fault: DovetailError | None) -> dict[str, object]:
        reason = {} if fault is None else {"reason": fault.message}
        return {"fields": {"engine": self.engine.name, "replica": self.number, **reason}}


class Noted:
    """Hears for another, and notes when: a replica that says nothing is looked at."""

    __slots__ = ("_hear", "_worker", "wait")

    def __init__(self, worker: Worker, listener: TokenSink) -> None:
        self._worker = worker
        self._hear = listener.push
        self.wait = listener.drain

    def hear(self, delta: TokenDelta) -> bool:
        self._worker.heard = monotonic()
        return self._hear(delta)


def _told(error: Exception) -> DovetailError:
    """What an engine of somebody's own raises is a reason like any other."""
    if isinstance(error, DovetailError):
        return error
    return EngineUnavailable(f"{type(error).__name__}: {error}")
