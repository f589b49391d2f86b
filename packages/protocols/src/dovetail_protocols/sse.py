"""Server-sent events: frames out, frames in."""

import msgspec


class ServerEvent(msgspec.Struct, frozen=True):
    """One event as it came over the wire."""

    event: str
    data: str


def frame(data: bytes, event: bytes = b"") -> bytes:
    """One frame. `event` is left out where the API names its events in the data alone."""
    if event:
        return b"event: " + event + b"\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """A line that every client must ignore, and that keeps the connection alive."""
    return b": " + text.encode() + b"\n\n"


class SseReader:
    """Read a stream of frames in chunks of any size. Buffers at most one unfinished line."""

    __slots__ = ("_data", "_event", "_line")

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Events that this chunk completes."""
        if b"\n" not in chunk:
            self._line.append(chunk)
            return []
        *lines, rest = b"".join([*self._line, chunk]).split(b"\n")
        self._line = [rest]
        found: list[ServerEvent] = []
        for line in lines:
            event = self._take(line.removesuffix(b"\r").decode("utf-8", "replace"))
            if event is not None:
                found.append(event)
        return found

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
