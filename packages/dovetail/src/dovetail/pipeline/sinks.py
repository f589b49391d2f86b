"""What the pipeline writes events to."""

from collections.abc import Callable
from typing import Protocol

from dovetail_model import Event, Fold, Message


class EventSink(Protocol):
    """Receives the events of a response synchronously, by choice.

    That keeps a token cheap: no task switch between the engine's socket and the client's. A sink
    that has no room reports that, and is drained before the engine continues (backpressure).
    """

    def write(self, choice: int, events: list[Event]) -> bool:
        """Write a batch of events. Returns False if there is no room for more at the moment."""

    async def drain(self) -> None:
        """Wait until there is room."""


class CallbackSink:
    """Passes each event of one choice to a callback, and folds them into a message."""

    __slots__ = ("_fold", "_on_event")

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self._fold = Fold()
        self._on_event = on_event

    def write(self, choice: int, events: list[Event]) -> bool:
        for event in events:
            self._fold.add(event)
            self._on_event(event)
        return True

    async def drain(self) -> None:
        """Return at once: there is always room."""

    def message(self) -> Message:
        """Return the message so far."""
        return self._fold.message()
