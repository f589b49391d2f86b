"""One replica of a model: its engine, how busy it is, and whether it can be asked.

A replica that failed is asked for nothing more until it has shown that it is back. A process of
ours is started again; a server of somebody else's is looked at until it answers.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from dovetail.engines.engine import EngineHealth, TokenDelta, TokenEngine, TokenSink, check_health
from dovetail_model import DovetailError, EngineError, EngineTimeout, EngineUnavailable

#: Seconds before each look at a replica that is down; the last one is repeated.
RECOVERY_DELAYS_SECONDS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
SUPERVISED_RECOVERY_DELAYS_SECONDS = (0.0, 0.1, 0.2, 0.5, 1.0)  # to look costs next to nothing
HEALTH_TIMEOUT_SECONDS = 3.0
STALL_TIMEOUT_SECONDS = 30.0  # seconds in which a replica that works should say something
BACKOFF_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Replica:
    """One replica."""

    __slots__ = (
        "_running",
        "active_requests",
        "engine",
        "index",
        "is_available",
        "last_activity",
        "last_rejection",
        "recovery_task",
        "restarts",
    )

    def __init__(self, engine: TokenEngine, index: int) -> None:
        self.engine = engine
        self.index = index
        self.is_available = True
        self.active_requests = 0
        self.last_activity = 0.0  # when it last began or said something
        self.restarts = 0
        self.last_rejection = float("-inf")  # when it last had no room, or failed
        self._running = True
        self.recovery_task: asyncio.Task[None] | None = None  # ends when the replica is back

    async def start(self) -> DovetailError | None:
        """Makes the replica ready, or says why it is not."""
        self._running = True
        try:
            await self.engine.start()
        except Exception as error:
            return _to_dovetail_error(error)
        return None

    @contextmanager
    def track_request(self) -> Iterator[None]:
        """One generation, for as long as it lasts. A failure of the engine takes it down."""
        self.active_requests += 1
        self.last_activity = monotonic()
        try:
            yield
        except (EngineUnavailable, EngineTimeout) as fault:
            self.mark_down(fault)
            raise
        except EngineError:
            self.last_rejection = monotonic()
            raise
        finally:
            self.active_requests -= 1

    @property
    def in_backoff(self) -> bool:
        """Whether others should be asked first: a moment ago it had no room, or failed."""
        return monotonic() - self.last_rejection < BACKOFF_SECONDS

    def mark_down(self, error: DovetailError) -> None:
        """It is down, and somebody sees to it that it comes back."""
        if not self._running:
            return  # it was stopped while it worked
        if self.is_available:
            _log.warning("replica_down", extra=self._log_fields(error))
        self.is_available = False
        if self.recovery_task is None or self.recovery_task.done():
            self.recovery_task = asyncio.create_task(self._recover())

    async def health(self) -> EngineHealth:
        return await check_health(self.engine, HEALTH_TIMEOUT_SECONDS)

    async def check_stalled(self) -> None:
        """Takes a replica down that works, says nothing, and is not there when it is asked.

        What it still had to do breaks off, and goes on elsewhere.
        """
        if (
            not (self.is_available and self.active_requests)
            or monotonic() - self.last_activity < STALL_TIMEOUT_SECONDS
        ):
            return
        if (await self.health()).ready or (await self.health()).ready:
            self.last_activity = monotonic()
            return
        self.mark_down(EngineUnavailable("it works, and does not answer"))
        await self.engine.stop()

    async def stop(self) -> None:
        self._running = False
        if self.recovery_task is not None:
            self.recovery_task.cancel()
            await asyncio.gather(self.recovery_task, return_exceptions=True)
        await self.engine.stop()

    async def _recover(self) -> None:
        """Looks again and again, ever more rarely."""
        pauses = (
            SUPERVISED_RECOVERY_DELAYS_SECONDS
            if self.engine.capabilities.supervised_elsewhere
            else RECOVERY_DELAYS_SECONDS
        )
        for looks in range(1 << 30):
            await asyncio.sleep(pauses[min(looks, len(pauses) - 1)])
            try:
                await self._restart()
            except Exception as error:
                _log.info("replica_still_down", extra=self._log_fields(_to_dovetail_error(error)))
                continue
            self.is_available = True
            _log.warning("replica_up", extra=self._log_fields(None))
            return

    async def _restart(self) -> None:
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

    def _log_fields(self, error: DovetailError | None) -> dict[str, object]:
        reason = {} if error is None else {"reason": error.message}
        return {"fields": {"engine": self.engine.name, "replica": self.index, **reason}}


class ActivitySink:
    """Hears for another, and notes when: a replica that says nothing is looked at."""

    __slots__ = ("_push", "_replica", "drain")

    def __init__(self, replica: Replica, sink: TokenSink) -> None:
        self._replica = replica
        self._push = sink.push
        self.drain = sink.drain

    def push(self, delta: TokenDelta) -> bool:
        self._replica.last_activity = monotonic()
        return self._push(delta)


def _to_dovetail_error(error: Exception) -> DovetailError:
    """What an engine of somebody's own raises is a reason like any other."""
    if isinstance(error, DovetailError):
        return error
    return EngineUnavailable(f"{type(error).__name__}: {error}")
