"""Strings that must match a pattern: the subset of regular expressions that schemas use.

Supported are anchored patterns of literals, classes, groups, alternatives and repetition, bounded
or not. A pattern with other features is not enforced.
"""

from dovetail_parsers.arguments.schema import Schema
from dovetail_parsers.constraint.nodes import (
    Chars,
    Choice,
    FreeText,
    Node,
    Repeat,
    Sequence,
    choice,
    repeat,
    sequence,
    text,
)
from dovetail_parsers.constraint.notation import PLAIN

_FORMATS = {
    "date": r"^[0-9]{4}-[01][0-9]-[0-3][0-9]$",
    "date-time": (
        r"^[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](\.[0-9]{1,9})?"
        r"(Z|[+\-][0-2][0-9]:[0-5][0-9])$"
    ),
    "uuid": r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
}
_WORD = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_CLASSES = {"d": (("0", "9"),), "w": _WORD}
_ESCAPABLE = frozenset("\\/.*+?()[]{}|^$-")
_SPECIAL = frozenset("\\*+?()[]{}|^$.")
_NEVER_PLAIN = ('"', "\\")  # in a JSON string
_MAX_REPETITIONS = 100  # repetitions that are counted
_MAX_WEIGHT = 1_000  # characters with repetitions expanded: engines fail on many more
_MAX_PATTERN_CHARS = 400

#: Groups inside each other in a pattern or a grammar. Readers and writers are recursive.
MAX_GROUP_DEPTH = 50


class UnsupportedPattern(Exception):
    """The pattern uses unsupported features."""


def string_pattern(schema: Schema) -> Node | None:
    """Return the quoted string that the schema's pattern or format allows; None if any."""
    pattern = schema.get("pattern") or _FORMATS.get(str(schema.get("format")))
    if not isinstance(pattern, str) or len(pattern) > _MAX_PATTERN_CHARS:
        return None
    if not pattern.startswith("^") or not pattern.endswith("$") or pattern.endswith("\\$"):
        return None
    try:
        return sequence(text('"'), PatternReader(pattern[1:-1]).whole(), text('"'))
    except (UnsupportedPattern, RecursionError):
        return None


class PatternReader:
    """Reads a pattern without its anchors, over characters that JSON does not escape."""

    __slots__ = ("_at", "_depth", "_pattern")

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = self._depth = 0

    def whole(self) -> Node:
        """Read one sequence: outside a group, each side of a bar would have only one anchor."""
        form = self._sequence()
        if self._at < len(self._pattern):
            raise UnsupportedPattern
        return form

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise UnsupportedPattern
        self._at += 1
        return char

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._one()))
        return sequence(*parts)

    def _one(self) -> Node:
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return self._class()
        if char == ".":
            return self.dot()
        if char == "\\":
            return self.chars(self._escaped(), negated=False)
        if char in _SPECIAL:
            raise UnsupportedPattern
        return self.character(char)

    def dot(self) -> Node:
        return PLAIN

    def character(self, char: str) -> Node:
        return text(_plain(char))

    def escape(self, char: str) -> tuple[tuple[str, str], ...]:
        if char in _CLASSES:
            return _CLASSES[char]
        if char not in _ESCAPABLE:
            raise UnsupportedPattern
        return ((char, char),)

    def chars(self, ranges: tuple[tuple[str, str], ...], negated: bool) -> Node:
        for char in (char for pair in ranges for char in pair):
            _plain(char)
        if negated:
            return Chars((*ranges, *PLAIN.ranges), negated=True)
        if any(low < char < high for low, high in ranges for char in _NEVER_PLAIN):
            raise UnsupportedPattern
        return Chars(ranges)

    def _group(self) -> Node:
        if self._peek() == "?":
            self._at += 1
            if self._take() != ":":
                raise UnsupportedPattern
        self._depth += 1
        check_group_depth(self._depth)
        options = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            options.append(self._sequence())
        if self._take() != ")":
            raise UnsupportedPattern
        self._depth -= 1
        return choice(*options)

    def _class(self) -> Node:
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[tuple[str, str]] = []
        while (char := self._take()) != "]":
            if char == "\\":
                ranges += self._escaped()
            elif self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                ranges.append((char, self._take()))
            else:
                ranges.append((char, char))
        if not ranges or any(low > high for low, high in ranges):
            raise UnsupportedPattern
        return self.chars(tuple(ranges), negated)

    def _escaped(self) -> tuple[tuple[str, str], ...]:
        return self.escape(self._take())

    def _repeated(self, part: Node) -> Node:
        char = self._peek()
        if not char or char not in "*+?{":
            return part
        self._at += 1
        min_count, max_count = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(
            char
        ) or self._counts()
        lazy_or_twice = self._peek() and self._peek() in "?+*{"
        if lazy_or_twice or may_be_empty(part):  # engines reject repetitions of the empty text
            raise UnsupportedPattern
        if max(min_count, max_count or 1) * _weight(part) > _MAX_WEIGHT:
            raise UnsupportedPattern
        return self.repeated(part, min_count, max_count)

    def repeated(self, part: Node, min_count: int, max_count: int | None) -> Node:
        return repeat(part, min_count, max_count)

    def _counts(self) -> tuple[int, int | None]:
        end = self._pattern.find("}", self._at)
        low, comma, high = self._pattern[self._at : max(end, self._at)].partition(",")
        if end < 0 or not low.isdigit() or not (high.isdigit() or not high):
            raise UnsupportedPattern
        self._at = end + 1
        min_count, max_count = int(low), int(high) if high else None if comma else int(low)
        if max(min_count, max_count or 0) > _MAX_REPETITIONS or (
            max_count is not None and max_count < min_count
        ):
            raise UnsupportedPattern
        return min_count, max_count


def check_group_depth(depth: int) -> None:
    """Raise `UnsupportedPattern` if groups are nested too deeply."""
    if depth > MAX_GROUP_DEPTH:
        raise UnsupportedPattern(f"groups are nested more than {MAX_GROUP_DEPTH} levels deep")


def may_be_empty(node: Node) -> bool:
    match node:
        case Sequence():
            return all(map(may_be_empty, node.parts))
        case Choice():
            return any(map(may_be_empty, node.options))
        case Repeat():
            return node.min_count == 0
        case FreeText():
            return not node.stops
    return False


def _weight(node: Node) -> int:
    """Return the number of characters of a pattern, with repetitions expanded."""
    match node:
        case Sequence():
            return sum(map(_weight, node.parts))
        case Choice():
            return sum(map(_weight, node.options))
        case Repeat():
            return max(node.min_count, node.max_count or 1) * _weight(node.part)
    return 1


def _plain(char: str) -> str:
    """Return a character that JSON does not escape."""
    if char in _NEVER_PLAIN or char < " ":
        raise UnsupportedPattern
    return char
