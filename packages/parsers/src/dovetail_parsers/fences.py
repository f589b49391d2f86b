"""Code fences in visible text: calls without their wrapper are not recognized inside them.

A fence is a line of three or more backticks or tildes. It may be indented or part of a quote. Only
a line of the same character, at least as long and with nothing behind it, closes the fence.
"""

import re

LINE_START = r"[ \t>]{0,16}"  # of an indented or quoted line
NAMES = tuple(char * count for char in "`~" for count in range(3, 9))  # a longer one is the last

_LINE_START = re.compile(LINE_START)
_RUN = re.compile(r"`{1,64}|~{1,64}")
_BLANK = re.compile(r"[ \t\r]{0,64}")


class FenceMatcher:
    """Matches the line that opens a fence, or that closes the given fence."""

    __slots__ = ("_closes",)

    def __init__(self, closes: str = "") -> None:
        self._closes = closes

    def match(self, buffer: str, at: int, final: bool = False) -> tuple[bool, str | None]:
        """Return the line at `at` up to the end of its fence, with the line break before it.

        The flag means: undecided, wait for more text.
        """
        start = _LINE_START.match(buffer, at + buffer.startswith("\n", at)).end()  # type: ignore[union-attr]
        if start == len(buffer):
            return not final, None
        run = _RUN.match(buffer, start)
        if run is None or (self._closes and run.group()[0] != self._closes[0]):
            return False, None
        if run.end() == len(buffer) and not final:
            return True, None
        if len(run.group()) < max(3, len(self._closes)):
            return False, None
        if self._closes:
            end = _BLANK.match(buffer, run.end()).end()  # type: ignore[union-attr]
            if end == len(buffer) and not final:
                return True, None
            if end < len(buffer) and buffer[end] != "\n":
                return False, None
        return False, buffer[at : run.end()]


def fence_name(line: str) -> str:
    """Return the name of the fence that a matched line opens."""
    return line.lstrip("\n\t >")[: len(NAMES[-1])]
