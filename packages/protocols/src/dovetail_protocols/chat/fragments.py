"""Assemble the calls of a chat stream from their fragments, and emit them in sequence.

A call ends where the next one starts. Some servers start several calls and alternate between them:
in that case the next call waits until the arguments of the previous one are complete, so that no
client runs a call with incomplete arguments.
"""

import json

from dovetail_model import CallArgs, CallClose, CallOpen, Diagnostic, Event
from dovetail_protocols.chat.chunk import CallFragment


class CallAssembler:
    """The calls of one choice. Calls before `_emitted` are closed, calls after it wait."""

    __slots__ = ("_calls", "_emitted")

    def __init__(self) -> None:
        self._calls: list[_CallBuilder] = []
        self._emitted = 0

    @property
    def opened(self) -> bool:
        """Whether the model made any call."""
        return any(call.opened for call in self._calls)

    def is_first(self, fragment: CallFragment) -> bool:
        """Return whether the fragment is the first of its call."""
        return self._owner(fragment) is None

    def add(self, fragment: CallFragment) -> list[Event]:
        """Add a fragment and return the events that are ready."""
        call = self._owner(fragment)
        if call is None:
            call = _CallBuilder(len(self._calls), fragment.index, fragment.id)
            self._calls.append(call)
        if call.closed:
            return [Diagnostic("late_arguments")]
        call.add(fragment)
        out: list[Event] = []
        while True:
            current = self._calls[self._emitted]
            out += current.take_events()
            if current is self._calls[-1] or not current.is_complete:
                return out
            out += current.close()
            self._emitted += 1

    def close(self, *, truncated: bool = False) -> list[Event]:
        """Close all calls. The last call stays open if the output was truncated."""
        out: list[Event] = []
        for call in self._calls[self._emitted :]:
            out += call.take_events()
            if not (truncated and call is self._calls[-1]):
                out += call.close()
                self._emitted += 1
        return out

    def _owner(self, fragment: CallFragment) -> "_CallBuilder | None":
        """Return the call that a fragment continues; without a name, not necessarily the last."""
        calls = self._calls
        if calls and calls[-1].owns(fragment):
            return calls[-1]
        if fragment.name or fragment.index is None:
            return None
        return next((call for call in reversed(calls) if call.owns(fragment)), None)


class _CallBuilder:
    """A call under construction. Its arguments wait until its name is known."""

    __slots__ = ("_arguments", "_custom", "_emitted", "_id", "_index", "_name", "_number", "closed")

    def __init__(self, number: int, index: int | None, id: str | None) -> None:
        self._number = number
        self._index = index
        self._id = id
        self._name = ""
        self._custom = False
        self._arguments: list[str] = []
        self._emitted = -1  # number of emitted fragments; -1 before the call was opened
        self.closed = False

    @property
    def opened(self) -> bool:
        return bool(self._name)

    @property
    def is_complete(self) -> bool:
        """Whether no more fragments can follow. Only the end of JSON arguments shows this."""
        if self._custom or not self.opened:
            return True
        try:
            json.loads("".join(self._arguments))
        except (ValueError, RecursionError):
            return False
        return True

    def owns(self, fragment: CallFragment) -> bool:
        """Return whether the fragment continues this call; without index and id by name."""
        if fragment.id and self._id:
            same = fragment.id == self._id
            return same and (fragment.index == self._index or fragment.index is None)
        if fragment.index is None:
            return not (fragment.name and self.opened)
        return fragment.index == self._index

    def add(self, fragment: CallFragment) -> None:
        if fragment.text:
            self._arguments.append(fragment.text)
        if not self.opened and fragment.name:
            self._name = fragment.name
            self._custom = fragment.custom is not None
            self._id = self._id or fragment.id

    def take_events(self) -> list[Event]:
        """Return the events that were not emitted yet."""
        out: list[Event] = []
        if not self.opened:
            return out
        if self._emitted < 0:
            out.append(CallOpen(self._number, self._name, self._id, custom=self._custom))
            self._emitted = 0
        if more := "".join(self._arguments[self._emitted :]):
            out.append(CallArgs(self._number, more))
        self._emitted = len(self._arguments)
        return out

    def close(self) -> list[Event]:
        if self.closed:
            return []
        self.closed = True
        return [CallClose(self._number)] if self.opened else [Diagnostic("nameless_call")]
