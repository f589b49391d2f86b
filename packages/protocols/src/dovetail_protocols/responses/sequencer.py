"""Serialize items that a server streams concurrently.

Consumers of events rely on it: between the start and the end of a call there are only its
arguments.
"""

from collections import deque
from collections.abc import Iterable

from dovetail_model import CallArgs, CallClose, CallOpen, Event, Failure, Finish


class EventSequencer:
    """Passes the events of the open call, and holds all others until it has ended."""

    __slots__ = ("_open", "_waiting")

    def __init__(self) -> None:
        self._open: int | None = None
        self._waiting: list[Event] = []

    def order(self, events: Iterable[Event]) -> list[Event]:
        """Return the events that can be emitted now, in order."""
        out: list[Event] = []
        left = deque(events)
        while left:
            event = left.popleft()
            if isinstance(event, Finish | Failure):  # no call can end any more: emit the rest
                out += [*self._waiting, event]
                self._waiting, self._open = [], None
            elif self._open is not None and _call_index(event) != self._open:
                self._waiting.append(event)
            else:
                out.append(event)
                if isinstance(event, CallOpen):
                    self._open = event.index
                elif isinstance(event, CallClose):
                    left.extendleft(reversed(self._waiting))
                    self._waiting, self._open = [], None
        return out


def _call_index(event: Event) -> int | None:
    return event.index if isinstance(event, CallOpen | CallArgs | CallClose) else None
