"""Writes a trace in a thread of its own. Who answers requests never waits for a disk."""

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from dovetail.telemetry.record import RequestContents, RequestRecord
from dovetail.telemetry.trace.line import encode_trace_line
from dovetail.telemetry.trace.writer import TraceFile

MAX_QUEUED_BYTES = (
    64 << 20
)  # bytes that may wait to be written; what comes then is dropped, and counted
CLOSE_TIMEOUT_SECONDS = 10.0  # seconds that the last lines may take
_LINE_OVERHEAD_BYTES = (
    2048  # bytes that a line takes up before it is one, besides what it is made of
)

_log = logging.getLogger(__name__)


class TraceWriter:
    """A recorder of requests. `dropped` is told of each that the trace does not have."""

    def __init__(
        self,
        file: TraceFile,
        on_drop: Callable[[], None] = lambda: None,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        self._file = file
        self._on_drop = on_drop
        self._max_queued_bytes = max_queued_bytes
        self._queue: SimpleQueue[tuple[RequestRecord, RequestContents, int] | None] = SimpleQueue()
        self._enqueued_bytes = 0  # bytes that were handed over: only the loop counts them
        self._processed_bytes = 0  # and those that are done with: only the thread does
        self._failing = False
        self._thread = Thread(target=self._run, name="dovetail-trace", daemon=True)
        self._thread.start()

    def record_request(self, record: RequestRecord, contents: RequestContents) -> None:
        size = _LINE_OVERHEAD_BYTES + sum(
            len(part) for part in (contents.body, contents.answer) if part is not None
        )
        if contents.ids is not None:
            size += len(contents.ids) * contents.ids.itemsize
        if self._enqueued_bytes - self._processed_bytes + size > self._max_queued_bytes:
            self._on_drop()
            return
        self._enqueued_bytes += size
        self._queue.put((record, contents, size))

    def close(self) -> None:
        """Writes what waits, for a while."""
        self._queue.put(None)
        self._thread.join(CLOSE_TIMEOUT_SECONDS)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            end, inside, size = item
            self._write(end, inside)
            self._processed_bytes += size
        self._file.close()

    def _write(self, record: RequestRecord, contents: RequestContents) -> None:
        try:
            self._file.write(encode_trace_line(record, contents))
            self._failing = False
        except Exception as error:  # the trace may fail: requests do not
            self._on_drop()
            if not self._failing:
                fields = {"file": str(self._file.path), "reason": f"{error}"}
                _log.warning("trace_not_written", extra={"fields": fields})
            self._failing = True
