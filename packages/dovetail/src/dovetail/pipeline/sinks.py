"""Who an answer is told to."""

from collections.abc import Callable
from typing import Protocol

from dovetail_model import Event, Fold, Message


class EventSink(Protocol):
    """Hears the events of an answer in the very call that made them, choice by choice.

    That is what keeps a token cheap: between the engine's socket and the client's no task is
    switched. What has no room for more says so, and is waited for before the engine goes on.
    """

    def write(self, choice: int, events: list[Event]) -> bool:
        """Takes a batch of events. False: there is no room for more at the moment."""

    async def drain(self) -> None:
        """Returns when there is room."""


class CallbackSink:
    """An audience of one: each event is shown, and what they make is kept."""

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
        """There always is."""

    def message(self) -> Message:
        """What was said so far."""
        return self._fold.message()
