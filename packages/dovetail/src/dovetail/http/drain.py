"""A server that is told to stop: what runs is finished, what is new is sent elsewhere.

It goes on listening meanwhile, so that whoever comes is told to come back later.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from dovetail.http.errors import HttpError
from dovetail_protocols import Codec

RETRY_AFTER_SECONDS = 2.0  # seconds: another server may have taken over by then

_log = logging.getLogger(__name__)


class ServerDraining(HttpError):
    """The server is about to stop. A load balancer knows this status, and tries another server.

    Its kind is the one that clients of the codec's API retry.
    """

    reason = "draining"
    status = 503
    headers = (("connection", "close"),)

    def __init__(self, message: str, codec: Codec) -> None:
        super().__init__(message, retry_after=RETRY_AFTER_SECONDS)
        self.kind = codec.draining_error.kind


class DrainController:
    """Whether the server ends, and the answers that it still works on.

    They have `patience` seconds.
    """

    __slots__ = ("_active", "_start_callbacks", "started", "timeout")

    def __init__(self, timeout: float = 300.0) -> None:
        self.timeout = timeout
        self.started = False
        self._active: dict[asyncio.Task[object] | None, _ActiveRequest] = {}
        self._start_callbacks: list[Callable[[], None]] = []

    @property
    def active_requests(self) -> int:
        """How many answers are not over yet."""
        return len(self._active)

    def on_start(self, callback: Callable[[], None]) -> None:
        """Has something done as soon as the server is told to stop."""
        self._start_callbacks.append(callback)

    def start(self) -> None:
        """Nothing new is taken from now on."""
        if self.started:
            return
        self.started = True
        _log.warning("draining", extra={"fields": {"running": self.active_requests}})
        for act in self._start_callbacks:
            act()

    @asynccontextmanager
    async def track(self, codec: Codec) -> AsyncIterator[None]:
        """One answer, for as long as the block lasts. Raises where the server ends."""
        if self.started:
            raise ServerDraining("The server is about to stop, and takes no more requests.", codec)
        task = asyncio.current_task()
        if task in self._active:  # it is part of one that is counted already
            yield
            return
        answer = self._active[task] = _ActiveRequest(task, codec)
        try:
            yield
        except asyncio.CancelledError:
            answer.raise_if_aborted()
            raise
        finally:
            del self._active[task]

    async def run_abortable(self, work: Awaitable[None]) -> None:
        """The part of an answer that can be broken off so that its stream tells."""
        answer = self._active.get(asyncio.current_task())
        try:
            await work
        except asyncio.CancelledError:
            if answer is not None:
                answer.raise_if_aborted()
            raise
        finally:
            if answer is not None:
                answer.completed = True

    def abort_all(self) -> None:
        """Nobody waits any longer: what is not said yet stays unsaid, and its client is told."""
        unsaid = [one for one in self._active.values() if not one.completed]
        if unsaid:
            _log.warning("broken_off", extra={"fields": {"answers": len(unsaid)}})
        for answer in unsaid:
            answer.abort()


class _ActiveRequest:
    """An answer that a task works on. `said`: all of it is, if not read yet."""

    __slots__ = ("_aborted", "_codec", "_task", "completed")

    def __init__(self, task: "asyncio.Task[object] | None", codec: Codec) -> None:
        self._task = task
        self._codec = codec
        self._aborted = False
        self.completed = False

    def abort(self) -> None:
        if self._task is not None and not self._aborted:
            self._aborted = True
            self._task.cancel()

    def raise_if_aborted(self) -> None:
        """Raises the error that is told, where the task was cancelled by us."""
        if self._aborted and self._task is not None:
            self._task.uncancel()
            raise ServerDraining("The server stopped before the answer was complete.", self._codec)
