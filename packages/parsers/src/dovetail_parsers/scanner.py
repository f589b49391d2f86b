"""Marker search with hold-back.

One compiled pattern per mode finds, in a single pass, either a complete marker or an end of the
buffer that could still become one. The text before it can be passed on.
"""

import re
import sys
from collections.abc import Iterable

from dovetail_parsers.fences import LINE_START, FenceMatcher

_Trie = dict[str, "_Trie"]


class Scanner:
    """Finds the markers of one mode. Immutable; shared by all streams of a family."""

    __slots__ = ("_match", "_partial", "markers", "spot")

    def __init__(self, markers: Iterable[str]) -> None:
        self.markers = frozenset(markers)
        pattern = re.compile(_pattern(self.markers)) if self.markers else re.compile(r"(?!)")
        #: Finds a possible marker, complete or truncated by the end of the text.
        self.spot = pattern.search
        self._match = pattern.match
        self._partial = frozenset(m[:i] for m in self.markers for i in range(1, len(m)))

    def search(
        self, buffer: str, start: int, final: bool, within: int = sys.maxsize
    ) -> tuple[int, str | None]:
        """Return the position of the next marker, and the marker; None for a partial one.

        If there is no marker, the position is the end of the buffer or of the search, which
        `within` limits.
        """
        stop = min(len(buffer), start + within)
        found = self.spot(buffer, start, stop)
        while found is not None:
            text = found.group()
            if not final and found.end() == len(buffer) and text in self._partial:
                return found.start(), None
            if text in self.markers:
                return found.start(), text
            found = self.spot(buffer, found.start() + 1, stop)
        return stop, None

    def match(self, buffer: str, start: int) -> tuple[bool, str | None]:
        """Return the marker at `start`. The flag means: undecided, wait for more text."""
        found = self._match(buffer, start)
        if found is None:
            return False, None
        text = found.group()
        if found.end() == len(buffer) and text in self._partial:
            return True, None
        return False, text if text in self.markers else None


class _Literals:
    """Many markers that are compared one by one: they depend on the request."""

    __slots__ = ("_by_start", "_start", "longest")

    def __init__(self, markers: Iterable[str], start: int) -> None:
        longer = sorted(markers, key=len, reverse=True)
        self._start = start  # characters that select the markers to compare
        self._by_start: dict[str, list[str]] = {}
        for marker in longer:
            self._by_start.setdefault(marker[:start], []).append(marker)
        self.longest = len(longer[0]) if longer else 0

    @property
    def starts(self) -> Iterable[str]:
        return self._by_start

    def match(self, buffer: str, at: int) -> tuple[bool, str | None]:
        """Return the marker at `at`. The flag means: undecided, wait for more text."""
        rest = buffer[at : at + self.longest]
        at_end = at + len(rest) == len(buffer)
        if len(rest) < self._start:
            return at_end and any(start.startswith(rest) for start in self._by_start), None
        for marker in self._by_start.get(rest[: self._start], ()):  # the longest first
            if rest.startswith(marker):
                return False, marker
            if at_end and marker.startswith(rest):
                return True, None
        return False, None


class LineScanner(Scanner):
    """A scanner with many further markers that all start with a line break, and with fences."""

    __slots__ = ("_fences", "_lines")

    def __init__(self, markers: Iterable[str], lines: Iterable[str], fences: FenceMatcher) -> None:
        super().__init__(markers)
        self._lines = _Literals(lines, 2)
        self._fences = fences
        starts = "".join(re.escape(start[1]) for start in self._lines.starts)
        line = rf"\n(?:{LINE_START}(?:[`~]|\Z){f'|[{starts}]' if starts else ''})"
        self.spot = re.compile(f"{_pattern(self.markers)}|{line}".lstrip("|")).search

    def search(
        self, buffer: str, start: int, final: bool, within: int = sys.maxsize
    ) -> tuple[int, str | None]:
        stop = min(len(buffer), start + within)
        found = self.spot(buffer, start, stop)
        while found is not None:
            at, text = found.start(), found.group()
            if text[0] == "\n":
                if text[-1] in " \t\n>":  # the end of the text: any line may follow
                    return (stop, None) if final else (at, None)
                if text[-1] in "`~":
                    undecided, line = self._fences.match(buffer, at, final)
                else:
                    undecided, line = self._lines.match(buffer, at)
                if line is not None or (undecided and not final):
                    return at, line
            elif not final and found.end() == len(buffer) and text in self._partial:
                return at, None
            elif text in self.markers:
                return at, text
            found = self.spot(buffer, at + 1, stop)
        return stop, None


class LiteralScanner(Scanner):
    """A scanner for the start of text that has many markers, and fences."""

    __slots__ = ("_fences", "_literals")

    def __init__(self, markers: Iterable[str], fences: FenceMatcher) -> None:
        super().__init__(())
        self._literals = _Literals(markers, 1)
        self._fences = fences

    def match(self, buffer: str, start: int) -> tuple[bool, str | None]:
        undecided, marker = self._literals.match(buffer, start)
        if marker is not None:
            return False, marker
        may_be_fence, fence = self._fences.match(buffer, start)
        return undecided or may_be_fence, fence


def _pattern(markers: Iterable[str]) -> str:
    root: _Trie = {}
    for marker in markers:
        node = root
        for char in marker:
            node = node.setdefault(char, {})
        node[""] = {}
    return "|".join(re.escape(char) + _branch(child) for char, child in root.items())


def _branch(node: _Trie) -> str:
    """Return the continuations: the longest first, then the end of the buffer, then none."""
    longer = [re.escape(char) + _branch(child) for char, child in node.items() if char]
    if not longer:
        return ""
    ends = [r"\Z", ""] if "" in node else [r"\Z"]
    return "(?:" + "|".join(longer + ends) + ")"
