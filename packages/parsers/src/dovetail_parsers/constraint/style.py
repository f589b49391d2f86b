"""The encoding of characters in a custom tool's text: raw, or in a JSON string."""

import json
from typing import Protocol

from dovetail_parsers.constraint.nodes import (
    Chars,
    FreeText,
    Node,
    any_of,
    choice,
    non_empty_text,
    repeat,
    sequence,
    text,
)
from dovetail_parsers.constraint.notation import PLAIN
from dovetail_parsers.constraint.pattern import UnsupportedPattern


class TextStyle(Protocol):
    """The encoding of the characters of a text."""

    def literal(self, characters: str) -> Node: ...

    def chars(self, chars: Chars) -> Node: ...

    def line(self, min_count: int) -> Node:
        """Any text on one line."""


class RawStyle:
    """Raw characters, without any of the closers."""

    def __init__(self, closers: tuple[str, ...]) -> None:
        self._never = ("\n", *closers)

    def literal(self, characters: str) -> Node:
        return text(characters)

    def chars(self, chars: Chars) -> Node:
        return chars

    def line(self, min_count: int) -> Node:
        return non_empty_text(self._never) if min_count else FreeText(never=self._never)


class JsonStringStyle:
    """Characters as in a JSON string, without the quotes."""

    def literal(self, characters: str) -> Node:
        return text(json.dumps(characters, ensure_ascii=False)[1:-1])

    def chars(self, chars: Chars) -> Node:
        escaped = [c for c in '"\\\n\r\t' if _takes(chars, c)]
        if chars.negated:
            plain = Chars((*chars.ranges, *PLAIN.ranges), negated=True)
        elif any(low < c < high for low, high in chars.ranges for c in '"\\\x1f'):
            raise UnsupportedPattern
        else:
            plain_ranges = tuple(
                pair for pair in chars.ranges if pair[0] >= " " and pair[0] not in '"\\'
            )
            plain = Chars(plain_ranges)
        ways = [*([plain] if plain.ranges else []), *map(self.literal, escaped)]
        return choice(*ways)

    def line(self, min_count: int) -> Node:
        run = repeat(PLAIN)
        more = repeat(sequence(_LINE_ESCAPE, run))
        return (
            sequence(choice(PLAIN, _LINE_ESCAPE), run, more) if min_count else sequence(run, more)
        )


_HEX = Chars((("0", "9"), ("a", "f"), ("A", "F")))
_HIGH = Chars((("1", "9"), ("a", "f"), ("A", "F")))
# no line break, not even as an escape
_BEYOND = choice(sequence(text("0"), _HIGH), sequence(_HIGH, _HEX))
_LINE_ESCAPE = sequence(
    text("\\"), choice(any_of('"\\/bfrt'), sequence(text("u"), _BEYOND, _HEX, _HEX))
)


def _takes(chars: Chars, char: str) -> bool:
    return any(low <= char <= high for low, high in chars.ranges) != chars.negated
