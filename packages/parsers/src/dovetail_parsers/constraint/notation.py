"""How the families write values: JSON, Python literals, Gemma's strings between tokens."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dovetail_parsers.arguments.json_validator import Dialect
from dovetail_parsers.arguments.notation import write_dialect, write_python
from dovetail_parsers.constraint.nodes import (
    Chars,
    FreeText,
    Node,
    any_of,
    choice,
    marker,
    optional,
    repeat,
    sequence,
    text,
)

# Bounded: models that fail repeat digits without end.
_DIGIT = Chars((("0", "9"),))
_COUNTING = sequence(Chars((("1", "9"),)), repeat(_DIGIT, 0, 39))
_FRACTION = sequence(text("."), repeat(_DIGIT, 1, 39))
_EXPONENT = sequence(any_of("eE"), optional(any_of("+-")), repeat(_DIGIT, 1, 4))

INTEGER = choice(text("0"), sequence(optional(text("-")), _COUNTING))
POSITIVE = sequence(choice(text("0"), _COUNTING), optional(_FRACTION), optional(_EXPONENT))
NUMBER = sequence(optional(text("-")), POSITIVE)

_HEX = Chars((("0", "9"), ("a", "f"), ("A", "F")))
_ESCAPE = sequence(text("\\"), choice(any_of('"\\/bfnrt'), sequence(text("u"), repeat(_HEX, 4, 4))))
#: A character of a JSON string that is not escaped.
PLAIN = Chars((('"', '"'), ("\\", "\\"), ("\0", "\x1f")), negated=True)
# Runs of plain characters instead of a choice for each character: xgrammar needs 100 ms for a mask
# of the latter, and 0.1 ms for one of the former.
_PLAIN_RUN = repeat(PLAIN)
_JSON_STRING = sequence(text('"'), _PLAIN_RUN, repeat(sequence(_ESCAPE, _PLAIN_RUN)), text('"'))
FILLED_STRING = sequence(
    text('"'), choice(PLAIN, _ESCAPE), _PLAIN_RUN, repeat(sequence(_ESCAPE, _PLAIN_RUN)), text('"')
)
_BARE_KEY = Chars((("0", "9"), ("A", "Z"), ("a", "z"), *((c, c) for c in "_$.-/@")))


@dataclass(frozen=True)
class Notation:
    """`literal` writes a constant, `key` a key. One space may follow a colon or comma, if the
    notation has any: with more, a model could loop on white space.
    """

    name: str
    string: Node
    any_key: Node
    key: Callable[[str], Node]
    literal: Callable[[Any], Node]
    space: Node
    words: tuple[str, str, str] = ("true", "false", "null")
    quoted: bool = True  # strings are written as in JSON
    quote: str = '"'


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json(value: Any) -> Node:
    return text(_dump(value))


_SPACE = optional(text(" "))

JSON = Notation(
    name="json", string=_JSON_STRING, any_key=_JSON_STRING, key=_json, literal=_json, space=_SPACE
)

PYTHON = Notation(
    name="python",
    string=_JSON_STRING,
    any_key=_JSON_STRING,
    key=_json,
    literal=lambda value: text(write_python(value)),
    space=_SPACE,
    words=("True", "False", "None"),
)


def dialect_notation(dialect: Dialect) -> Notation:
    """Return the notation of a dialect of JSON."""
    if not dialect.quote:
        return JSON
    return Notation(
        name="delimited",
        string=sequence(marker(dialect.quote), FreeText(stops=(dialect.quote,))),
        any_key=repeat(_BARE_KEY, 1),
        key=text,
        literal=lambda value: _delimited(value, dialect),
        space=text(""),
        quoted=False,
        quote=dialect.quote,
    )


def _delimited(value: Any, dialect: Dialect) -> Node:
    """Write a constant: written as the value of a key, from which it is then extracted."""
    written = write_dialect(_dump({"k": value}), dialect)
    return text(written[len("{k:") : -1])
