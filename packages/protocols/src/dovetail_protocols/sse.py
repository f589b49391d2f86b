"""Server-sent events: write and read frames."""

import msgspec

from dovetail_model import EngineUnavailable

MAX_EVENT_BYTES = 16 << 20
"""Maximum size of one event that is read. A server that sends a longer one is faulty."""


class ServerEvent(msgspec.Struct, frozen=True):
    """One event as received."""

    event: str
    data: str


def frame(data: bytes, event: bytes = b"") -> bytes:
    """Encode a frame. `event` is omitted if the API names its events only in the data."""
    if event:
        return b"event: " + event + b"\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """Encode a comment, which clients must ignore and which keeps the connection alive."""
    return b": " + text.encode() + b"\n\n"


class SseReader:
    """Reads a stream of frames in chunks of any size. Buffers at most one incomplete event.

    Raises `EngineUnavailable` if an incomplete event is larger than `max_bytes`.
    """

    __slots__ = ("_data", "_event", "_line", "_max_bytes", "_pending_bytes")

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._line: list[bytes] = []
        self._event = ""
        self._data: list[str] = []
        self._max_bytes = max_bytes
        self._pending_bytes = 0  # of the incomplete event

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Return the events that this chunk completes."""
        if b"\n" not in chunk:
            self._line.append(chunk)
            self._add_pending(len(chunk))
            return []
        *lines, rest = b"".join([*self._line, chunk]).split(b"\n")
        self._line = [rest]
        found: list[ServerEvent] = []
        for line in lines:
            event = self._take(line.removesuffix(b"\r").decode("utf-8", "replace"))
            if event is not None:
                found.append(event)
        if found or not self._data:  # comments are not kept
            self._pending_bytes = sum(map(len, self._data))
            self._add_pending(len(rest))
        else:
            self._add_pending(len(chunk))
        return found

    def _add_pending(self, count: int) -> None:
        self._pending_bytes += count
        if self._pending_bytes > self._max_bytes:
            raise EngineUnavailable(
                f"the server sent an event of more than {self._max_bytes} bytes"
            )

    def _take(self, line: str) -> ServerEvent | None:
        if not line:
            data, event = "\n".join(self._data), self._event
            seen = bool(self._data or event)
            self._data, self._event = [], ""
            return ServerEvent(event, data) if seen else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        return None
