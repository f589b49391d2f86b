"""Close the sessions of an SGLang server that are not expected back.

With `--enable-session-radix-cache`, SGLang (0.5.23) evicts what belongs to open sessions after all
other entries. The first request of a session opens it, and only `/close_session` closes it. A
closed session loses nothing at once, and its next request opens it again.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from dovetail.engines.engine import EngineRequest
from dovetail.storage.lru import LruCache

#: A session whose return is not predicted is closed so long after its last request.
IDLE_SECONDS = 3600.0
#: The prediction follows the end of a request within this time.
PREDICTION_SECONDS = 10.0
#: To close the open sessions when the engine stops.
STOP_SECONDS = 5.0
MAX_FINISHED_REQUESTS = 4096
MAX_SESSIONS = 4096


class SessionReferences:
    """Closes each open session once none of its conversations is expected back.

    `close`: closes a session on the server. Returns whether the server responded. If it did not,
    the session is closed together with the next one.
    `track` encloses each request. `retain` follows where the return is predicted.
    """

    def __init__(self, close: Callable[[str], Awaitable[bool]]) -> None:
        self._close = close
        self._running: Counter[str] = Counter()
        # The latest time of all conversations. It remains after it has passed: a request without a
        # prediction may follow.
        self._retained_until: LruCache[str, float] = LruCache(MAX_SESSIONS)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._finished: LruCache[str, str] = LruCache(MAX_FINISHED_REQUESTS)  # request: session
        self._expired: LruCache[str, None] = LruCache(MAX_SESSIONS)  # not closed yet
        self._closing: asyncio.Task[None] | None = None

    @contextmanager
    def track(self, request: EngineRequest) -> Iterator[None]:
        """Keep the session of a request open in the block, and then until predicted otherwise.

        A request may also prefill the next prompt, which does not change the prediction.
        """
        session, running = request.session, self._running
        if not session:
            yield
            return
        running[session] += 1
        self._cancel_timer(session)
        self._expired.pop(session)
        try:
            yield
        finally:
            if running is self._running:  # otherwise `stop` has closed the session
                self._finish(request, session)

    def retain(self, request: str, seconds: float) -> None:
        """Keep the session of a finished request open for some time only."""
        session = self._finished.pop(request)
        if session is None:
            return
        until = asyncio.get_running_loop().time() + seconds
        until = max(until, self._retained_until.get(session) or until)
        self._retained_until.put(session, until)
        self._schedule(session, until)

    async def stop(self) -> None:
        """Close all open sessions if the server responds in time. Discard all other state."""
        for session in (*self._timers, *self._running):  # the running ones are being aborted
            self._cancel_timer(session)
            self._expired.put(session, None)
        self._running = Counter()
        self._retained_until.clear()
        self._finished.clear()
        closing = self._close_expired()
        await asyncio.wait({closing}, timeout=STOP_SECONDS)
        closing.cancel()

    def _finish(self, request: EngineRequest, session: str) -> None:
        now = asyncio.get_running_loop().time()
        self._running[session] -= 1
        if not self._running[session]:
            del self._running[session]
        if request.ends_session:
            self._retained_until.pop(session)
            self._schedule(session, now)
            return
        self._finished.put(request.id, session)
        retained_until = self._retained_until.get(session)
        if retained_until is None:
            retained_until = now + IDLE_SECONDS
        self._schedule(session, max(retained_until, now + PREDICTION_SECONDS))

    def _schedule(self, session: str, until: float) -> None:
        """Close a session at a time, unless a request of it runs then."""
        self._cancel_timer(session)
        if not self._running[session]:
            loop = asyncio.get_running_loop()
            self._timers[session] = loop.call_at(until, self._expire, session)

    def _cancel_timer(self, session: str) -> None:
        timer = self._timers.pop(session, None)
        if timer is not None:
            timer.cancel()

    def _expire(self, session: str) -> None:
        del self._timers[session]
        self._expired.put(session, None)
        self._close_expired()

    def _close_expired(self) -> "asyncio.Task[None]":
        if self._closing is None or self._closing.done():
            self._closing = asyncio.get_running_loop().create_task(self._close_all())
        return self._closing

    async def _close_all(self) -> None:
        """Close what has expired, one session after the other, while the server responds."""
        is_closed = True
        while self._expired and is_closed:
            session, _ = self._expired.pop_oldest()
            is_closed = False
            try:
                is_closed = await self._close(session)
            finally:
                if not is_closed and not self._running[session] and session not in self._timers:
                    self._expired.put(session, None)
