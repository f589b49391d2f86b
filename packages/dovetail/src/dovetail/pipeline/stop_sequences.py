"""Stop sequences: end the output before the first of them in the visible text.

With the scope `output` they are also found in reasoning and tool calls, as engines do it.
"""

import re
from collections.abc import Sequence
from typing import Literal

from dovetail_model import Diagnostic, Event, InvalidRequest, SpanEnd, TextDelta, Usage

StopScope = Literal["text", "output"]

MAX_STOP_SEQUENCE_CHARS = 1024  # all prefixes are stored, which is quadratic in the length
MAX_STOP_TOTAL_CHARS = 16 << 10


class StopSequenceMatcher:
    """Passes text up to the first stop sequence and holds back a possible beginning of one."""

    __slots__ = ("_held", "_longest", "_pattern", "_prefixes", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        sequences = sorted(set(filter(None, stops)), key=len, reverse=True)
        if sequences and (
            len(sequences[0]) > MAX_STOP_SEQUENCE_CHARS
            or sum(map(len, sequences)) > MAX_STOP_TOTAL_CHARS
        ):
            raise InvalidRequest(
                f"Stop sequences must have at most {MAX_STOP_SEQUENCE_CHARS} characters each "
                f"and {MAX_STOP_TOTAL_CHARS} in total.",
                param="stop",
            )
        self._pattern = re.compile("|".join(map(re.escape, sequences)))
        self._prefixes = {stop[:size] for stop in sequences for size in range(1, len(stop))}
        self._longest = max(map(len, sequences), default=1) - 1
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Return the text that is not part of a stop sequence. Text after one is dropped."""
        if self.found is not None:
            return ""
        text = self._held + text
        match = self._pattern.search(text)
        if match is not None:
            self.found, self._held = match[0], ""
            return text[: match.start()]
        held = self._partial_match_length(text)
        self._held = text[len(text) - held :] if held else ""
        return text[: len(text) - held] if held else text

    def finish(self) -> str:
        """Return the text that was held back."""
        held, self._held = self._held, ""
        return held

    def _partial_match_length(self, text: str) -> int:
        """Return the length of the longest suffix of the text that may begin a stop sequence."""
        for size in range(min(self._longest, len(text)), 0, -1):
            if text[-size:] in self._prefixes:
                return size
        return 0


class VisibleTextStops:
    """Ends a stream of events before the first stop sequence in a text span.

    Text that may begin a stop sequence is held back until the next text, or the end of its span: a
    stop sequence never reaches over other output.
    """

    __slots__ = ("_matcher", "_pending", "_text_open")

    def __init__(self, stops: Sequence[str]) -> None:
        self._matcher = StopSequenceMatcher(stops)
        self._pending: list[TextDelta] = []
        self._text_open = False

    @property
    def found(self) -> str | None:
        """The stop sequence that ended the output."""
        return self._matcher.found

    def filter(self, events: list[Event]) -> list[Event]:
        """Return the events before a stop sequence, and the end of a text span that it ends."""
        passed: list[Event] = []
        for event in events:
            if self.found is not None:
                if self._text_open and isinstance(event, SpanEnd) and event.kind == "text":
                    passed.append(SpanEnd("text"))
                    self._text_open = False
            elif isinstance(event, TextDelta):
                self._pending.append(event)
                passed += self._release(self._matcher.feed(event.text))
            elif isinstance(event, Diagnostic | Usage):
                passed.append(event)
            else:
                passed += self.finish()
                passed.append(event)
                self._text_open = False
        return passed

    def finish(self) -> list[TextDelta]:
        """Return the text that was held back."""
        self._matcher.finish()
        passed, self._pending = self._pending, []
        self._text_open |= bool(passed)
        return passed

    def _release(self, text: str) -> list[TextDelta]:
        """Take deltas with this text from the pending ones; the rest waits, or is dropped."""
        passed: list[TextDelta] = []
        left = len(text)
        while self._pending and len(self._pending[0].text) <= left:
            delta = self._pending.pop(0)
            left -= len(delta.text)
            passed.append(delta)
        if left:
            head, self._pending[0] = _split(self._pending[0], left)
            passed.append(head)
        if self.found is not None:
            self._pending.clear()
        self._text_open |= bool(passed)
        return passed


def _split(delta: TextDelta, size: int) -> tuple[TextDelta, TextDelta]:
    """Split a delta after `size` characters of its text, and its raw text at the same place."""
    at = max(delta.raw.find(delta.text), 0) + size
    return (
        TextDelta(delta.text[:size], delta.raw[:at]),
        TextDelta(delta.text[size:], delta.raw[at:]),
    )
