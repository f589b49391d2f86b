"""A run: deltas of one kind in a row, which differ in nothing but their text.

Nearly all of an answer is that, one delta at a time, and each comes after a pause in which the
caches forgot us. So a lone delta that goes on with the run has a way of its own, as short as can
be: what is around its text was made when the run began.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from dovetail_model import Event
from dovetail_protocols.json_strings import replace_surrogates

_encode = msgspec.json.encode


class DeltaRun:
    """What is around the text of deltas of one kind: of one choice, or of one call in it."""

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
        """The frame of a delta. What `quoted` does is done here: a call more is felt."""
        try:
            told = _encode(text)
        except UnicodeEncodeError:
            told = _encode(replace_surrogates(text))
        return self.head + told + self.tail


NO_RUN = DeltaRun(None, b"", b"")
"""Nothing is open, or what goes on with it needs a second thought."""


class DeltaRunEncoder(ABC):
    """A stream that goes on with its run at the least cost.

    `_encode` has to say by `_run`, each time, what a lone delta that comes next may go on with:
    its frame is then all that the delta leads to.
    """

    __slots__ = ("_run",)

    def __init__(self) -> None:
        self._run = NO_RUN

    def encode(self, events: Sequence[Event], choice: int = 0) -> bytes:
        """Frames for these events of one choice. Nothing follows the end of the stream."""
        run = self._run
        if len(events) == 1:
            event: Any = events[0]  # a delta, if it is of the run's kind
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
        """Any events, the first delta of a run among them."""
