"""Reports to the client: what it sent or requested that has no effect, and tolerated output.

Findings before the response starts are in the header `x-dovetail-diagnostics`. Later findings are
comments of the event stream, which all clients skip: `: x-dovetail-diagnostics: CODE, CODE`. Over a
WebSocket, both are messages of a type of their own.
"""

import re

import msgspec

DIAGNOSTICS_HEADER = "x-dovetail-diagnostics"
_COMMENT = f": {DIAGNOSTICS_HEADER}: "
_MESSAGE_TYPE = "dovetail.diagnostics"
_SEPARATOR = ", "

MAX_NOTES = 64  # clients choose the names of ignored fields, and proxies limit headers
_MAX_NOTE_CHARS = 96
# Header values must not contain other characters, and a comma separates notes.
_UNSAFE_CHARS = re.compile(r"[^\x20-\x2b\x2d-\x7e]+")


class ResponseDiagnostics:
    """The notes on one request, each reported once.

    unreported: Notes that the client has not received yet.
    """

    __slots__ = ("_dropped", "_notes", "unreported")

    def __init__(self) -> None:
        self._notes: set[str] = set()
        self._dropped = 0
        self.unreported: list[str] = []

    @property
    def notes(self) -> tuple[str, ...]:
        """All notes, in the order of their codes."""
        return tuple(sorted(self._notes))

    def add(self, note: str) -> None:
        note = _UNSAFE_CHARS.sub("_", note)[:_MAX_NOTE_CHARS]
        if note in self._notes:
            return
        if len(self._notes) >= MAX_NOTES:
            self._dropped += 1
            return
        self._notes.add(note)
        self.unreported.append(note)

    def header_value(self) -> str:
        """Return the notes that are not reported yet, as the value of the header."""
        notes, self.unreported = self.unreported, []
        if self._dropped:
            notes.append(f"more:{self._dropped}")
            self._dropped = 0
        return _SEPARATOR.join(notes)

    def comment(self) -> bytes:
        """Return the notes that are not reported yet, as a comment of an event stream."""
        return f"{_COMMENT}{self.header_value()}\n\n".encode()


def read_comment(frame: bytes) -> str | None:
    """Return the notes in a comment of an event stream; None if it has none."""
    prefix = _COMMENT.encode()
    return frame.removeprefix(prefix).decode() if frame.startswith(prefix) else None


def encode_message(notes: str) -> bytes:
    """Encode notes, the value of a header or of a comment, as a message of a WebSocket."""
    codes = notes.split(_SEPARATOR) if notes else []
    return msgspec.json.encode({"type": _MESSAGE_TYPE, "codes": codes})
