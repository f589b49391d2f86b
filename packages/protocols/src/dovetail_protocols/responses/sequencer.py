"""Put items that a server writes concurrently one after the other.

Readers of events may rely on that: between the opening of a call and its end there is nothing
but its arguments.
"""

from collections import deque
from collections.abc import Iterable

from dovetail_model import CallArgs, CallClose, CallOpen, Event, Failure, Finish


class EventSequencer:
    """Pass the events of the open call, and hold all others until it has ended."""

    __slots__ = ("_open", "_waiting")

    def __init__(self) -> None:
        self._open: int | None = None
        self._waiting: list[Event] = []

    def order(self, events: Iterable[Event]) -> list[Event]:
        """The events that can be emitted now, in order."""
        out: list[Event] = []
        left = deque(events)
        while left:
            event = left.popleft()
            if isinstance(event, Finish | Failure):  # nothing ends any more: emit all as it came
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
