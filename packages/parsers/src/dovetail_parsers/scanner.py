"""Marker search with hold-back.

One compiled pattern per mode finds, in a single pass, either a whole marker or a tail of the
buffer that could still become one. What precedes is safe to pass on.
"""

import re
import sys
from collections.abc import Iterable

_Trie = dict[str, "_Trie"]


class Scanner:
    """Finds the markers of one mode. Immutable, shared by every stream of a family."""

    __slots__ = ("_match", "_partial", "markers", "spot")

    def __init__(self, markers: Iterable[str]) -> None:
        self.markers = frozenset(markers)
        pattern = re.compile(_pattern(self.markers)) if self.markers else re.compile(r"(?!)")
        #: Finds what may be a marker, whole or cut off at the end of a text.
        self.spot = pattern.search
        self._match = pattern.match
        self._partial = frozenset(m[:i] for m in self.markers for i in range(1, len(m)))

    def search(
        self, buffer: str, start: int, final: bool, within: int = sys.maxsize
    ) -> tuple[int, str | None]:
        """Where the next marker begins, and the marker; None for one that is still partial.

        Without either, the position is the buffer's end, or that of the search: `within` bounds
        how far it goes.
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
        """The marker that begins at `start`. The flag says: undecided, wait for more text."""
        found = self._match(buffer, start)
        if found is None:
            return False, None
        text = found.group()
        if found.end() == len(buffer) and text in self._partial:
            return True, None
        return False, text if text in self.markers else None


def _pattern(markers: Iterable[str]) -> str:
    root: _Trie = {}
    for marker in markers:
        node = root
        for char in marker:
            node = node.setdefault(char, {})
        node[""] = {}
    return "|".join(re.escape(char) + _branch(child) for char, child in root.items())


def _branch(node: _Trie) -> str:
    """What may follow: the longest continuation first, then the end of the buffer, then nothing."""
    longer = [re.escape(char) + _branch(child) for char, child in node.items() if char]
    if not longer:
        return ""
    ends = [r"\Z", ""] if "" in node else [r"\Z"]
    return "(?:" + "|".join(longer + ends) + ")"
