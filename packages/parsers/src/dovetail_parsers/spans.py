"""Spans of text and reasoning: their white space, their ends and their raw text.

White space that only frames blocks is not content and stays in the raw text alone. Therefore white
space is held until the following text decides. Reasoning spans with only white space between them
are one span, so the end of a reasoning span is emitted when something else starts.
"""

from typing import Literal

from dovetail_model import Event, ReasoningDelta, SpanEnd, TextDelta

Kind = Literal["text", "reasoning"]
Delta = type[TextDelta] | type[ReasoningDelta]

_DELTAS: dict[Kind, Delta] = {"text": TextDelta, "reasoning": ReasoningDelta}


class SpanBuilder:
    """Converts plain text to deltas and span ends, and tracks the raw text of each event."""

    __slots__ = (
        "_closed",
        "_end_raw",
        "_only_whitespace",
        "_open",
        "_whitespace",
        "delta",
        "events",
        "raw",
    )

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.raw: list[str] = []  # read, but not yet part of an event
        self.delta: Delta | None = (
            None  # event type that continues the open span, unless it was closed
        )
        self._open: Kind | None = None
        self._whitespace: list[str] = []  # content if the same span continues, else framing
        self._closed = False  # the open reasoning was closed, but its end is not emitted yet
        self._end_raw = ""  # raw text up to that closer
        self._only_whitespace = True  # no other text so far

    @property
    def in_reasoning(self) -> bool:
        """Whether a reasoning span is open and not closed."""
        return self._open == "reasoning" and not self._closed

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def take_raw(self) -> str:
        raw = "".join(self.raw)
        self.raw.clear()
        return raw

    def add_markup(self, text: str) -> None:
        """Add markup."""
        self.raw.append(text)
        self._only_whitespace = False

    def write(self, kind: Kind, text: str) -> None:
        """Add plain text of a kind."""
        if kind != self._open or self._closed:
            self._begin(kind, text)
        elif self.raw or text[-1].isspace():
            self._continue(kind, text)
        else:
            self.events.append(_DELTAS[kind](text, text))

    def end_text(self) -> None:
        """End the text at markup: the markup and the white space before it are framing."""
        if self._open == "text":
            self._end_raw = self.take_raw()
            self.end()

    def close_reasoning(self) -> None:
        """Close reasoning at its closing marker."""
        if self.in_reasoning:
            self._closed, self.delta = True, None
            self._end_raw = self.take_raw()

    def end_reasoning(self) -> None:
        """End closed reasoning because a possible call starts: it cannot continue any more."""
        if self._closed:
            self.end()

    def end(self) -> None:
        """End the open span because a call starts; white space before the call is framing."""
        if self._open is not None:
            self.events.append(SpanEnd(self._open, self._end_raw))
        self._open, self._closed, self._end_raw = None, False, ""
        self.delta = None
        self._whitespace.clear()
        self._only_whitespace = False

    def end_frame(self) -> None:
        """Add markup after a call: it belongs to the call unless a span has started since."""
        if self._open is None and any(self.raw):
            self.events.append(SpanEnd("frame", self.take_raw()))
            self._whitespace.clear()

    def finish(self) -> None:
        """Finish the output. White space at the end of an unclosed span belongs to it."""
        if self._open is None:
            self.end_frame()
            return
        if self._whitespace and not self._closed:
            delta = _DELTAS[self._open]
            self.events.append(delta("".join(self._whitespace), self.take_raw()))
        self._end_raw += self.take_raw()
        self.end()

    def _begin(self, kind: Kind, text: str) -> None:
        """Start a span for text of a kind that is not open, or for reasoning after a closed one."""
        body = text.lstrip()
        lead = text[: len(text) - len(body)]
        self._hold(lead)
        if not body:
            return
        if self._closed and kind == "reasoning":
            self.raw.insert(0, self._end_raw)
            self._closed, self._end_raw = False, ""
        else:
            white = self._whitespace.copy() if self._only_whitespace and kind == "text" else []
            self.end()
            self._open, self._whitespace = kind, white
        self.delta = _DELTAS[kind]
        self._continue(kind, body)

    def _continue(self, kind: Kind, text: str) -> None:
        body = text.rstrip()
        if body:
            self.raw.append(body)
            self._whitespace.append(body)
            self.events.append(_DELTAS[kind]("".join(self._whitespace), self.take_raw()))
            self._whitespace.clear()
        self._hold(text[len(body) :])

    def _hold(self, whitespace: str) -> None:
        if whitespace:
            self._whitespace.append(whitespace)
            self.raw.append(whitespace)
