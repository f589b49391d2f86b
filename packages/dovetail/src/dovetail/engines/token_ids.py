"""Prompts as JSON, for engines that are told ids in that form.

A prompt of 80,000 ids takes two milliseconds to write down, and the next one of its session begins
with the same ids. So what was written last is kept for a while, and only what is new is written.
"""

from array import array
from collections import OrderedDict

import msgspec

SESSIONS = 64  # whose last prompt is kept, in so many bytes at most:
MOST_BYTES = 64 << 20
SHORT = 2_000  # ids that are not worth keeping

_encode = msgspec.json.encode


class Spelling:
    """Writes prompts. Each session's last one is remembered, the least recent forgotten first."""

    __slots__ = ("_known", "_size")

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[array[int], bytes]] = OrderedDict()
        self._size = 0

    def spell(self, prompt: "array[int]", session: str | None) -> msgspec.Raw:
        """The ids as a JSON list."""
        if session is None or len(prompt) < SHORT:
            return msgspec.Raw(_encode(prompt.tolist()))
        text = self._grown(prompt, self._forget(session))
        self._known[session] = (prompt, text)
        self._size += len(text)
        while len(self._known) > SESSIONS or self._size > MOST_BYTES:
            self._forget(next(iter(self._known)))
        return msgspec.Raw(text)

    def _forget(self, session: str) -> tuple["array[int]", bytes] | None:
        known = self._known.pop(session, None)
        if known is not None:
            self._size -= len(known[1])
        return known

    def _grown(self, prompt: "array[int]", known: tuple["array[int]", bytes] | None) -> bytes:
        if known is None or not _begins_with(prompt, known[0]):
            return _encode(prompt.tolist())
        before, text = known
        rest = prompt[len(before) :]
        return text[:-1] + b"," + _encode(rest.tolist())[1:] if rest else text


def _begins_with(prompt: "array[int]", before: "array[int]") -> bool:
    """Compared as bytes, nothing is copied and no number made."""
    size = len(before) * before.itemsize
    return memoryview(prompt).cast("B")[:size] == memoryview(before).cast("B")
