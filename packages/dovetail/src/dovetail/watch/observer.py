"""Pass relayed bytes to the analysis, in another thread and with bounded memory.

The relay only puts references into a queue. If the analysis is too slow or fails, or a body is too
large, the connection is no longer observed, which is counted. Its bytes are relayed in any case.
"""

import logging
from collections import Counter
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

import h11

from dovetail.watch.capture import CaptureLimits, ConnectionCapture, UnobservableError
from dovetail.watch.exchange import CapturedExchange
from dovetail.watch.relay import RelayDirection

_log = logging.getLogger(__name__)

_ERROR_REASONS: dict[type[Exception], str] = {
    h11.RemoteProtocolError: "the traffic is not valid HTTP",
}

_TOO_SLOW = "the analysis is too slow"
_CHUNK_OVERHEAD_BYTES = 256  # of a queued chunk

ExchangeCallback = Callable[[CapturedExchange], None]
_Item = tuple[int, RelayDirection, bytes, float]


class TrafficObserver:
    """Capture what the relay forwards, and pass finished exchanges to `on_exchange` in a thread.

    `unobserved` counts, by reason, the connections and exchanges that could not be observed.
    """

    def __init__(
        self,
        on_exchange: ExchangeCallback,
        limits: CaptureLimits | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.unobserved: Counter[str] = Counter()
        self.other_exchanges = 0  # other than generation, such as lists of models
        self._on_exchange = on_exchange
        self._on_close = on_close  # called in that thread at the end
        self._limits = limits or CaptureLimits()
        self._queue: SimpleQueue[_Item | CapturedExchange | None] = SimpleQueue()
        self._queued_bytes = 0  # only the relay's thread writes it
        self._processed_bytes = 0  # only our thread writes it
        self._ignored_connections: set[int] = set()
        self._captures: dict[int, ConnectionCapture] = {}
        self._lock = Lock()
        self._last_number = 0
        self._thread = Thread(target=self._run, name="dovetail-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Process what is queued, then stop."""
        self._queue.put(None)
        if self._thread.ident is None:  # it was never started
            self._run()
        else:
            self._thread.join()

    def observe(self, connection: int, direction: RelayDirection, data: bytes, at: float) -> None:
        """Queue a relayed chunk. Never raises, never blocks."""
        if direction == "closed":
            self._queue.put((connection, direction, b"", at))
        elif connection in self._ignored_connections:
            return
        elif self._has_room(data):
            self._queue.put((connection, direction, data, at))
        else:
            self._ignore_connection(connection, _TOO_SLOW)

    def add_exchange(self, exchange: CapturedExchange) -> None:
        """Queue an exchange that was captured elsewhere."""
        if self._has_room(exchange.request, exchange.response):
            self._queue.put(exchange)
        else:
            self.count_unobserved(_TOO_SLOW)

    def _has_room(self, *parts: bytes) -> bool:
        """Return whether these fit into the queue. If so, they are counted."""
        size = _queue_size(*parts)
        if self._queued_bytes - self._processed_bytes + size > self._limits.queue_bytes:
            return False
        self._queued_bytes += size
        return True

    def _ignore_connection(self, connection: int, reason: str) -> None:
        self._ignored_connections.add(connection)
        self.count_unobserved(reason)

    def count_unobserved(self, reason: str) -> None:
        with self._lock:
            self.unobserved[reason] += 1

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, CapturedExchange):
                self._deliver(item)
                self._processed_bytes += _queue_size(item.request, item.response)
                continue
            connection, direction, data, at = item
            try:
                self._process_chunk(connection, direction, data, at)
            except Exception as error:  # no error here may reach the relay
                self._handle_error(connection, error)
            if direction == "closed":
                self._captures.pop(connection, None)
                # Only now, because chunks that are still queued must be ignored, too.
                self._ignored_connections.discard(connection)
            else:
                self._processed_bytes += _queue_size(data)
        self._on_close()

    def _process_chunk(
        self, connection: int, direction: RelayDirection, data: bytes, at: float
    ) -> None:
        if connection in self._ignored_connections:
            self._captures.pop(connection, None)
            return
        capture = self._captures.get(connection)
        if direction == "closed":
            finished = capture.close(at) if capture is not None else ()
        else:
            if capture is None:
                capture = self._captures[connection] = ConnectionCapture(
                    self._limits, self._next_number
                )
            finished = capture.feed(direction, data, at)
        for exchange in finished:
            if exchange is None:
                self.other_exchanges += 1
            else:
                self._deliver(exchange)

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _deliver(self, exchange: CapturedExchange) -> None:
        try:
            self._on_exchange(exchange)
        except Exception as error:
            _log.debug("exchange_analysis_failed", exc_info=error)
            self.count_unobserved(f"an exchange could not be analyzed ({type(error).__name__})")

    def _handle_error(self, connection: int, error: Exception) -> None:
        self._captures.pop(connection, None)
        reason = (
            str(error)
            if isinstance(error, UnobservableError)
            else _ERROR_REASONS.get(type(error), "")
        )
        _log.debug("connection_observation_failed", exc_info=error)
        self._ignore_connection(
            connection, reason or f"the observer failed ({type(error).__name__})"
        )


def _queue_size(*parts: bytes) -> int:
    return sum(map(len, parts)) + _CHUNK_OVERHEAD_BYTES
