"""What the relay passed on, handed to those who look at it: in another thread, and bounded.

The relay only puts references into a queue. If whoever looks is too slow, fails, or a body is too
large, the connection is looked at no more, which is counted. Its bytes go on in any case.
"""

import logging
from collections import Counter
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

import h11

from dovetail.watch.capture import Limits, Unobserved, Wiretap
from dovetail.watch.exchange import Exchange
from dovetail.watch.relay import Direction

_log = logging.getLogger(__name__)

_FAULTS: dict[type[Exception], str] = {
    h11.RemoteProtocolError: "what passed was not HTTP as it should be",
}

_TOO_SLOW = "the observer could not keep up"
_OF_A_PIECE = 256  # bytes that a piece in the queue takes besides its own

Take = Callable[[Exchange], None]
_Item = tuple[int, Direction, bytes, float]


class Tee:
    """Takes what the relay sees; gives finished exchanges to `take`, in a thread of its own.

    `unobserved` counts, by reason, the connections and exchanges that could not be looked at.
    """

    def __init__(
        self,
        take: Take,
        limits: Limits | None = None,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self.unobserved: Counter[str] = Counter()
        self.others = 0  # exchanges that no model answers: lists of models and the like
        self._take = take
        self._done = done  # called in that thread, when nothing more comes
        self._limits = limits or Limits()
        self._queue: SimpleQueue[_Item | Exchange | None] = SimpleQueue()
        self._put = 0  # bytes that were queued; only the relay's thread writes it
        self._got = 0  # bytes that were taken; only our thread writes it
        self._deaf: set[int] = set()  # connections that are looked at no more
        self._taps: dict[int, Wiretap] = {}
        self._lock = Lock()
        self._numbers = 0
        self._thread = Thread(target=self._run, name="dovetail-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Looks at what is still queued, then ends."""
        self._queue.put(None)
        if self._thread.ident is None:  # it was never started
            self._run()
        else:
            self._thread.join()

    def sees(self, connection: int, direction: Direction, data: bytes, at: float) -> None:
        """Called by the relay for every piece. Never raises, never waits."""
        if direction == "closed":
            self._queue.put((connection, direction, b"", at))
        elif connection in self._deaf:
            return
        elif self._has_room(data):
            self._queue.put((connection, direction, data, at))
        else:
            self._deafen(connection, _TOO_SLOW)

    def exchange(self, exchange: Exchange) -> None:
        """An exchange that was put together elsewhere."""
        if self._has_room(exchange.request, exchange.answer):
            self._queue.put(exchange)
        else:
            self.count(_TOO_SLOW)

    def _has_room(self, *parts: bytes) -> bool:
        """Whether these may wait, too. If so they are counted."""
        size = _size(*parts)
        if self._put - self._got + size > self._limits.queued:
            return False
        self._put += size
        return True

    def _deafen(self, connection: int, reason: str) -> None:
        self._deaf.add(connection)
        self.count(reason)

    def count(self, reason: str) -> None:
        with self._lock:
            self.unobserved[reason] += 1

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, Exchange):
                self._give(item)
                self._got += _size(item.request, item.answer)
                continue
            connection, direction, data, at = item
            try:
                self._hear(connection, direction, data, at)
            except Exception as error:  # nothing that goes wrong here may reach the relay
                self._lose(connection, error)
            if direction == "closed":
                self._taps.pop(connection, None)
                self._deaf.discard(connection)  # here alone: what was queued before it is deaf, too
            else:
                self._got += _size(data)
        self._done()

    def _hear(self, connection: int, direction: Direction, data: bytes, at: float) -> None:
        if connection in self._deaf:
            self._taps.pop(connection, None)
            return
        tap = self._taps.get(connection)
        if direction == "closed":
            found = tap.close(at) if tap is not None else ()
        else:
            if tap is None:
                tap = self._taps[connection] = Wiretap(self._limits, self._number)
            found = tap.hear(direction, data, at)
        for exchange in found:
            if exchange is None:
                self.others += 1
            else:
                self._give(exchange)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _give(self, exchange: Exchange) -> None:
        try:
            self._take(exchange)
        except Exception as error:
            _log.debug("exchange_unread", exc_info=error)
            self.count(f"an exchange could not be read ({type(error).__name__})")

    def _lose(self, connection: int, error: Exception) -> None:
        self._taps.pop(connection, None)
        reason = str(error) if isinstance(error, Unobserved) else _FAULTS.get(type(error), "")
        _log.debug("connection_unobserved", exc_info=error)
        self._deafen(connection, reason or f"the observer failed ({type(error).__name__})")


def _size(*parts: bytes) -> int:
    return sum(map(len, parts)) + _OF_A_PIECE
