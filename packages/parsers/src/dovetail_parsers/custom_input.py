"""The input of custom tools where a family prescribes JSON: in JSON, or as its text alone."""

import re

from dovetail_parsers.grammar import Channel, free_text_mode
from dovetail_parsers.special_tokens import SpecialTokenMachine

# The JSON around the input of a custom tool; three quotes start a text of their own.
_OBJECT, _MAY_BE_OBJECT = re.compile(r"""\{\s*["'}]|"(?!"")"""), re.compile(r'\{\s*|"{1,2}')


class CustomInputMachine(SpecialTokenMachine):
    """Reads free text for custom tools."""

    __slots__ = ()

    def _begin_custom_input(self, buffer: str, at: int, final: bool) -> None:
        """Begin the input of a custom tool: the prescribed notation, or only its text."""
        free_text = self._grammar.states.get(free_text_mode(self._state.name))
        assert self._state.mode.body is not None
        if not final and _MAY_BE_OBJECT.fullmatch(buffer, at):
            self._wait = True
        elif free_text is None or _OBJECT.match(buffer, at):
            self._decoder = self._state.mode.body.decoder()
        else:
            self._call.begin_free_text()
            self._state = free_text

    def _free_text(self, buffer: str, at: int, final: bool) -> int:
        """Read free text for a custom tool up to a marker that may follow it."""
        end, marker = self._find_markup(buffer, at, final)
        closes = False if marker is None else self._ends_free_text(buffer, end, marker, final)
        if marker is not None and closes is False:
            end += 1
        after_line = buffer[at:end].endswith("\n")
        held = after_line and (marker is None or (marker == "```" and closes is not False))
        stop = end - 1 if held and not (marker is None and final) else end
        self._call.add_arguments(buffer[at:stop], buffer[at : end if closes else stop])
        if closes and marker is not None:
            return self._cross(marker, end)
        self._wait = closes is None or (marker is None and stop < len(buffer))
        return stop

    def _ends_free_text(self, buffer: str, at: int, marker: str, final: bool) -> bool | None:
        target = self._grammar.states[self._state.edges[marker].mode]
        if target.channel is Channel.GAP and target.mode.otherwise is None:
            return self._closes(buffer, at, marker, final)
        return True
