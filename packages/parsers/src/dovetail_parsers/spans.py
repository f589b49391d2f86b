"""Spans of text and reasoning: what white space means, where spans end, their raw text.

White space that only frames blocks is no content: it stays in the raw text alone. So white space
is held until what follows decides. Reasoning spans with nothing but white space between them
are one span; the end of a reasoning span is therefore emitted when something else begins.
"""

from typing import Literal

from dovetail_model import Event, ReasoningDelta, SpanEnd, TextDelta

Kind = Literal["text", "reasoning"]
Delta = type[TextDelta] | type[ReasoningDelta]

_DELTAS: dict[Kind, Delta] = {"text": TextDelta, "reasoning": ReasoningDelta}


class SpanBuilder:
    """Turn plain text into deltas and span ends, and track the raw text of each event."""

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
        self.raw: list[str] = []  # read, and not yet part of an event
        self.delta: Delta | None = None  # what goes on with the open span, unless it was closed
        self._open: Kind | None = None
        self._whitespace: list[str] = []  # content if the same span goes on, else framing
        self._closed = False  # the open reasoning was closed, its end not emitted yet
        self._end_raw = ""  # raw text up to that closer
        self._only_whitespace = True  # nothing but white space so far

    @property
    def in_reasoning(self) -> bool:
        """Whether a reasoning span is open that nothing has closed."""
        return self._open == "reasoning" and not self._closed

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def take_raw(self) -> str:
        raw = "".join(self.raw)
        self.raw.clear()
        return raw

    def add_markup(self, text: str) -> None:
        """Markup was read."""
        self.raw.append(text)
        self._only_whitespace = False

    def write(self, kind: Kind, text: str) -> None:
        """Plain text of a kind."""
        if kind != self._open or self._closed:
            self._begin(kind, text)
        elif self.raw or text[-1].isspace():
            self._continue(kind, text)
        else:
            self.events.append(_DELTAS[kind](text, text))

    def end_text(self) -> None:
        """Markup that ends the text was read: it, and white space before it, is framing."""
        if self._open == "text":
            self._end_raw = self.take_raw()
            self.end()

    def close_reasoning(self) -> None:
        """A closing marker was read."""
        if self.in_reasoning:
            self._closed, self.delta = True, None
            self._end_raw = self.take_raw()

    def end_reasoning(self) -> None:
        """What may be a call begins: call or text, closed reasoning does not continue."""
        if self._closed:
            self.end()

    def end(self) -> None:
        """A call begins: the open span has ended, and white space before the call is framing."""
        if self._open is not None:
            self.events.append(SpanEnd(self._open, self._end_raw))
        self._open, self._closed, self._end_raw = None, False, ""
        self.delta = None
        self._whitespace.clear()
        self._only_whitespace = False

    def end_frame(self) -> None:
        """Markup behind a call was read: it belongs to the call, if no span began since."""
        if self._open is None and any(self.raw):
            self.events.append(SpanEnd("frame", self.take_raw()))
            self._whitespace.clear()

    def finish(self) -> None:
        """The output has ended. White space at the end of an unclosed span belongs to it."""
        if self._open is None:
            self.end_frame()
            return
        if self._whitespace and not self._closed:
            delta = _DELTAS[self._open]
            self.events.append(delta("".join(self._whitespace), self.take_raw()))
        self._end_raw += self.take_raw()
        self.end()

    def _begin(self, kind: Kind, text: str) -> None:
        """Text of a kind that is not open, or of reasoning that was closed."""
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
