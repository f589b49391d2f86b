"""Writes a trace in a thread of its own. Who answers requests never waits for a disk."""

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from dovetail.telemetry.record import Inside, RequestEnd
from dovetail.telemetry.trace.line import line_of
from dovetail.telemetry.trace.writer import TraceFile

ROOM = 64 << 20  # bytes that may wait to be written; what comes then is dropped, and counted
PATIENCE = 10.0  # seconds that the last lines may take
_LINE = 2048  # bytes that a line takes up before it is one, besides what it is made of

_log = logging.getLogger(__name__)


class TraceWriter:
    """A recorder of requests. `dropped` is told of each that the trace does not have."""

    def __init__(
        self, file: TraceFile, dropped: Callable[[], None] = lambda: None, room: int = ROOM
    ) -> None:
        self._file = file
        self._dropped = dropped
        self._room = room
        self._queue: SimpleQueue[tuple[RequestEnd, Inside, int] | None] = SimpleQueue()
        self._given = 0  # bytes that were handed over: only the loop counts them
        self._taken = 0  # and those that are done with: only the thread does
        self._failing = False
        self._thread = Thread(target=self._run, name="dovetail-trace", daemon=True)
        self._thread.start()

    def ended(self, end: RequestEnd, inside: Inside) -> None:
        size = _LINE + sum(len(part) for part in (inside.body, inside.answer) if part is not None)
        if inside.ids is not None:
            size += len(inside.ids) * inside.ids.itemsize
        if self._given - self._taken + size > self._room:
            self._dropped()
            return
        self._given += size
        self._queue.put((end, inside, size))

    def close(self) -> None:
        """Writes what waits, for a while."""
        self._queue.put(None)
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            end, inside, size = item
            self._write(end, inside)
            self._taken += size
        self._file.close()

    def _write(self, end: RequestEnd, inside: Inside) -> None:
        try:
            self._file.write(line_of(end, inside))
            self._failing = False
        except Exception as error:  # the trace may fail: requests do not
            self._dropped()
            if not self._failing:
                fields = {"file": str(self._file.path), "reason": f"{error}"}
                _log.warning("trace_not_written", extra={"fields": fields})
            self._failing = True
