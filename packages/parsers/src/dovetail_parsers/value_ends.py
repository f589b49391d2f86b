"""Where a raw value ends: at its own closer, or at the closers of everything that contains it."""

import re

from dovetail_parsers.arguments.json_validator import QUOTES
from dovetail_parsers.arguments.value import MAX_HELD_CHARS
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
        start, edge, count = at, self._state.enclosing[marker], 1
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
                is_text = is_text and buffer[at] not in QUOTES and buffer[end] != "<"
                return is_text and self._has_ended(buffer, start, at, final)
            marker, edge, count = following, target.edges[following], count + 1
            following_mode = self._grammar.states[edge.mode]
            if following_mode.in_head:
                return self._starts_call(buffer, end + len(marker), following_mode, final)
            if count == _MAX_CLOSERS:
                return True
            if target.channel is Channel.TEXT:
                is_reasoning = edge.mode == "reasoning" and count > 2
                return is_reasoning and self._has_ended(buffer, start, end, final)
            at = end

    def _has_ended(self, buffer: str, start: int, behind: int, final: bool) -> bool | None:
        """Return whether the value has ended at closers that text or reasoning follows.

        They are data if the value's own closer follows later, outside of calls that the text
        contains. If this is not known within a limit, they are data too: a call that stays
        incomplete is better than one with a truncated argument. None means: wait for more text.
        """
        if self._quotes_closers:
            return False
        scanned, depth = self._scanned
        at, stop = max(behind, start + scanned), start + MAX_HELD_CHARS
        while True:
            end, marker = self._find(buffer, at, False, max(0, stop - at))
            if marker is None:
                break
            if marker in self._state.nested:
                depth += 1
            elif marker not in self._state.edges:
                depth = max(0, depth - 1)
            elif not depth:
                closes = self._closes(buffer, end, marker, final)
                if closes is None:
                    break
                if closes:
                    self._quotes_closers = True
                    return False
            at = end + len(marker)
        self._scanned = end - start, depth
        if len(buffer) >= stop:
            self._quotes_closers = True
            return False
        return True if final else None

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
