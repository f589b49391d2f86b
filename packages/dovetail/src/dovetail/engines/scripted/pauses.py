"""Waiting that ends at once when the engine goes away."""

import asyncio
from collections.abc import Callable

from dovetail_model import EngineUnavailable

POLL_INTERVAL_SECONDS = 0.02  # seconds until what is waited for is looked at again


class InterruptibleTimer:
    """All waiting of an engine's generations. Once broken, none can be made."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self.interrupt_reason: str | None = None

    async def sleep(self, seconds: float | None) -> None:
        """Wait; without end for None, and for nothing at all just let others run."""
        if seconds is not None and seconds <= 0:
            await asyncio.sleep(0)
        else:
            await self._sleep_until_woken(seconds)
        self.raise_if_interrupted()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for something outside of the engine."""
        while not condition():
            await self.sleep(POLL_INTERVAL_SECONDS)

    def raise_if_interrupted(self) -> None:
        """Raises if the engine is gone."""
        if self.interrupt_reason is not None:
            raise EngineUnavailable(self.interrupt_reason)

    def interrupt(self, reason: str) -> None:
        """Everyone who waits, or will, gets an error with this reason."""
        self.interrupt_reason = reason
        for future in self._waiting:
            _wake(future)

    def resume(self) -> None:
        """Waiting is possible again."""
        self.interrupt_reason = None

    async def _sleep_until_woken(self, seconds: float | None) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _wake, future)
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)
            if timer is not None:
                timer.cancel()


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
