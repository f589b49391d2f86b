"""The sinks that the pipeline writes events to."""

from collections.abc import Callable
from typing import Protocol

from dovetail_model import Event, Fold, Message


class EventSink(Protocol):
    """Receives the events of a response synchronously, per choice.

    This makes tokens cheap: there is no task switch between the sockets of engine and client. If
    the sink is full, `write` returns False, and the engine waits for `drain` (backpressure).
    """

    def write(self, choice: int, events: list[Event]) -> bool:
        """Write a batch of events. Returns False if the sink is full."""

    async def drain(self) -> None:
        """Wait until the sink has room."""


class CallbackSink:
    """Passes each event of one choice to a callback and folds all into a message."""

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
        """Return immediately: the sink is never full."""

    def message(self) -> Message:
        """Return the message so far."""
        return self._fold.message()
