"""Where a raw value ends: at its own closer, or at the closers of everything that contains it."""

import re

from dovetail_parsers.arguments.json_validator import QUOTES
from dovetail_parsers.grammar import Channel, CompiledMode
from dovetail_parsers.transitions import MachineState

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"\s{0,8}[\w.\-]{1,200}")
_LOOK_AHEAD_CHARS = 256  # white space between a value's closer and what must follow it
_MAX_CLOSERS = 8  # more than any format nests


class ValueMachine(MachineState):
    """Decides which markers inside a value are data."""

    __slots__ = ()

    def _ends_value(self, buffer: str, at: int, marker: str, final: bool) -> bool | None:
        """Return whether a marker ends the value; None means that more text is needed."""
        if marker in self._state.edges:
            return self._closes(buffer, at, marker, final)
        if marker in self._state.nested:
            self._nested += 1
            return False
        if self._nested:
            self._nested -= 1
            return False
        return self._closes_all(buffer, at, marker, final)

    def _closes(self, buffer: str, at: int, marker: str, final: bool) -> bool | None:
        """Return whether a marker ends the value: only if a marker of the next mode follows.

        None means that more text is needed.
        """
        target = self._grammar.states[self._state.edges[marker].mode]
        start = at + len(marker)
        end = _SPACE.match(buffer, start).end()  # type: ignore[union-attr]
        if end - start > _LOOK_AHEAD_CHARS:
            return False
        if end == len(buffer):
            return True if final else None
        undecided, following = target.scanner.match(buffer, end)
        if undecided:
            return True if final else None
        return following is not None

    def _closes_all(self, buffer: str, at: int, marker: str, final: bool) -> bool | None:
        """Return whether the closers of everything that contains the value start at `at`.

        Only white space may separate them, and the end of the output, a call of an offered tool or
        text must follow. If there is only one closer, text may belong to the value, as it does
        behind closers that are quoted. None means that more text is needed.
        """
        edge, count = self._state.enclosing[marker], 1
        while True:
            at += len(marker)
            target = self._grammar.states[edge.mode]
            end = _SPACE.match(buffer, at).end()  # type: ignore[union-attr]
            if end - at > _LOOK_AHEAD_CHARS:
                return False
            if end == len(buffer):
                return True if final else None
            undecided, following = target.scanner.match(buffer, end)
            if undecided:
                return True if final else None
            if following is None:
                is_text = count > 1 and target.channel is Channel.TEXT
                return is_text and buffer[at] not in QUOTES and buffer[end] != "<"
            marker, edge, count = following, target.edges[following], count + 1
            following_mode = self._grammar.states[edge.mode]
            if following_mode.in_head:
                return self._starts_call(buffer, end + len(marker), following_mode, final)
            if count == _MAX_CLOSERS:
                return True
            if target.channel is Channel.TEXT:
                return edge.mode == "reasoning" and count > 2
            at = end

    def _starts_call(self, buffer: str, at: int, mode: CompiledMode, final: bool) -> bool | None:
        """Return whether the opener before `at` opens a call of an offered tool.

        The opener of a section of calls leads to one of a call.
        """
        while mode.channel is Channel.GAP:
            at = _SPACE.match(buffer, at).end()  # type: ignore[union-attr]
            undecided, marker = mode.scanner.match(buffer, at)
            if undecided or at == len(buffer):
                return True if final else None
            if marker is None:
                return False
            mode = self._grammar.states[mode.edges[marker].mode]
            at += len(marker)
        found = _NAME.match(buffer, at)
        if at == len(buffer) or (found is not None and found.end() == len(buffer)):
            return True if final else None
        return found is not None and self._call.has_tool(found.group().strip())
