"""Close the sessions of an SGLang server that are not expected back.

With `--enable-session-radix-cache`, SGLang (0.5.23) evicts what belongs to open sessions after all
other entries. The first request of a session opens it, and only `/close_session` closes it. A
closed session loses nothing at once, and its next request opens it again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

from dovetail.engines.engine import EngineRequest
from dovetail.storage.lru import LruCache

#: A session whose return is not predicted is closed so long after its last request.
IDLE_SECONDS = 3600.0
#: The prediction follows the end of a request within this time.
PREDICTION_SECONDS = 10.0
MAX_FINISHED_REQUESTS = 4096


class SessionReferences:
    """Calls `close` with each open session once none of its conversations is expected back.

    `start` and `finish` enclose each request. `retain` follows where the return is predicted.
    """

    def __init__(self, close: Callable[[str], None]) -> None:
        self._close = close
        self._running: Counter[str] = Counter()
        self._retained_until: dict[str, float] = {}  # the latest time of all conversations
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._finished: LruCache[str, str] = LruCache(MAX_FINISHED_REQUESTS)  # request: session

    def start(self, request: EngineRequest) -> None:
        """Keep the session of a request open while the request runs."""
        if session := request.session:
            self._running[session] += 1
            self._cancel_timer(session)

    def finish(self, request: EngineRequest) -> None:
        """Record that a request has ended. Its session stays open until it is predicted otherwise.

        A request may also prefill the next prompt, which does not change the prediction.
        """
        session, now = request.session, asyncio.get_running_loop().time()
        if not session:
            return
        self._running[session] -= 1
        if not self._running[session]:
            del self._running[session]
        if request.ends_session:
            self._retained_until.pop(session, None)
            self._schedule(session, now)
            return
        self._finished.put(request.id, session)
        retained_until = self._retained_until.get(session, now + IDLE_SECONDS)
        self._schedule(session, max(retained_until, now + PREDICTION_SECONDS))

    def retain(self, request: str, seconds: float) -> None:
        """Keep the session of a finished request open for some time only."""
        session = self._finished.pop(request)
        if session is None:
            return
        until = asyncio.get_running_loop().time() + seconds
        until = max(until, self._retained_until.get(session, until))
        self._retained_until[session] = until
        self._schedule(session, until)

    def stop(self) -> None:
        for session in list(self._timers):
            self._cancel_timer(session)

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
        self._retained_until.pop(session, None)
        self._close(session)
