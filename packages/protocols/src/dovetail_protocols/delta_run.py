"""Runs of deltas of one kind that differ only in their text.

Nearly all events of a response are such deltas. They arrive one at a time, after a pause in which
the CPU caches went cold. Therefore a single delta that continues a run takes a fast path: the bytes
around its text were built when the run started.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from dovetail_model import Event
from dovetail_protocols.json_strings import replace_surrogates

_encode = msgspec.json.encode


class DeltaRun:
    """The constant bytes around the text of deltas of one kind, for one choice or one call."""

    __slots__ = ("call", "choice", "head", "kind", "tail")

    def __init__(
        self,
        kind: type[Any] | None,
        head: bytes,
        tail: bytes,
        *,
        call: int | None = None,
        choice: int = 0,
    ) -> None:
        self.kind = kind
        self.head = head
        self.tail = tail
        self.call = call
        self.choice = choice

    def frame(self, text: str) -> bytes:
        """Encode a delta. `encode_json_string` is inlined: another call is measurable here."""
        try:
            encoded = _encode(text)
        except UnicodeEncodeError:
            encoded = _encode(replace_surrogates(text))
        return self.head + encoded + self.tail


NO_RUN = DeltaRun(None, b"", b"")
"""No span is open, or the next delta needs the slow path."""


class DeltaRunEncoder(ABC):
    """A stream encoder with a fast path for a single delta that continues the run.

    `_encode` must set `_run` to the run that a single next delta may continue. In that case the
    frame of the delta must be everything there is to encode.
    """

    __slots__ = ("_run",)

    def __init__(self) -> None:
        self._run = NO_RUN

    def encode(self, events: Sequence[Event], choice: int = 0) -> bytes:
        """Encode these events of one choice. Events after the end of the stream are ignored."""
        run = self._run
        if len(events) == 1:
            event: Any = events[0]  # a delta, if it has the run's type
            if (
                type(event) is run.kind
                and choice == run.choice
                and (run.call is None or event.index == run.call)
                and event.text
            ):
                return run.frame(event.text)
        return self._encode(events, choice)

    @abstractmethod
    def _encode(self, events: Sequence[Event], choice: int) -> bytes:
        """Encode any events, including the first delta of a run."""
