"""A server that is told to stop: what runs is finished, what is new is sent elsewhere.

It goes on listening meanwhile, so that whoever comes is told to come back later.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from dovetail.http.errors import HttpError
from dovetail_protocols import MESSAGES, Codec

RETRY_AFTER = 2.0  # seconds: another server may have taken over by then

_log = logging.getLogger(__name__)


class Stopping(HttpError):
    """The server ends. A load balancer knows this status, and asks another one."""

    kind = "engine_unavailable"  # Codex asks again; at an overload that is so called, it gives up
    reason = "draining"
    status = 503
    headers = (("connection", "close"),)


class StoppingMessages(Stopping):
    """The same for the Messages API, in the type that its clients come back after."""

    kind = "overloaded"


class Draining:
    """Whether the server ends, and the answers that it still works on.

    They have `patience` seconds.
    """

    __slots__ = ("_answers", "_on_begin", "begun", "patience")

    def __init__(self, patience: float = 300.0) -> None:
        self.patience = patience
        self.begun = False
        self._answers: dict[asyncio.Task[object] | None, _Answer] = {}
        self._on_begin: list[Callable[[], None]] = []

    @property
    def running(self) -> int:
        """How many answers are not over yet."""
        return len(self._answers)

    def on_begin(self, act: Callable[[], None]) -> None:
        """Has something done as soon as the server is told to stop."""
        self._on_begin.append(act)

    def begin(self) -> None:
        """Nothing new is taken from now on."""
        if self.begun:
            return
        self.begun = True
        _log.warning("draining", extra={"fields": {"running": self.running}})
        for act in self._on_begin:
            act()

    @asynccontextmanager
    async def answering(self, codec: Codec) -> AsyncIterator[None]:
        """One answer, for as long as the block lasts. Raises where the server ends."""
        if self.begun:
            raise stopping(codec, "The server is about to stop, and takes no more requests.")
        task = asyncio.current_task()
        if task in self._answers:  # it is part of one that is counted already
            yield
            return
        answer = self._answers[task] = _Answer(task, codec)
        try:
            yield
        except asyncio.CancelledError:
            answer.tell()
            raise
        finally:
            del self._answers[task]

    async def breakable(self, told: Awaitable[None]) -> None:
        """The part of an answer that can be broken off so that its stream tells."""
        answer = self._answers.get(asyncio.current_task())
        try:
            await told
        except asyncio.CancelledError:
            if answer is not None:
                answer.tell()
            raise
        finally:
            if answer is not None:
                answer.said = True

    def break_off(self) -> None:
        """Nobody waits any longer: what is not said yet stays unsaid, and its client is told."""
        unsaid = [one for one in self._answers.values() if not one.said]
        if unsaid:
            _log.warning("broken_off", extra={"fields": {"answers": len(unsaid)}})
        for answer in unsaid:
            answer.cut()


class _Answer:
    """An answer that a task works on. `said`: all of it is, if not read yet."""

    __slots__ = ("_codec", "_cut", "_task", "said")

    def __init__(self, task: "asyncio.Task[object] | None", codec: Codec) -> None:
        self._task = task
        self._codec = codec
        self._cut = False
        self.said = False

    def cut(self) -> None:
        if self._task is not None and not self._cut:
            self._cut = True
            self._task.cancel()

    def tell(self) -> None:
        """Raises the error that is told, where the task was cancelled by us."""
        if self._cut and self._task is not None:
            self._task.uncancel()
            raise stopping(self._codec, "The server stopped before the answer was complete.")


def stopping(codec: Codec, message: str) -> Stopping:
    """That the server ends, in the kind that this API's clients come back after."""
    kind = StoppingMessages if codec is MESSAGES else Stopping
    return kind(message, retry_after=RETRY_AFTER)
