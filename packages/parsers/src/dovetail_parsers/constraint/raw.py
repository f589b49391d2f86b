"""Values between tags: strings as they are, everything else as JSON, then the closer."""

from collections.abc import Sequence as Many
from typing import Any

from dovetail_parsers.arguments.notation import write_json
from dovetail_parsers.constraint.form import Free, Node, choice, marker, sequence, text
from dovetail_parsers.constraint.options import Constant, Option, Typed
from dovetail_parsers.constraint.schema import Values


def raw_value(options: Many[Option], closers: tuple[str, ...], values: Values) -> Node:
    """One of these values and its closer. Free text ends at the first closer, whatever follows:
    a grammar cannot look ahead as the parser does.
    """
    if any(isinstance(option, Typed) and option.kind in ("string", "any") for option in options):
        return Free(stops=closers)
    forms = [
        text(_raw(option.value)) if isinstance(option, Constant) else values.option(option)
        for option in options
    ]
    return sequence(choice(*forms), marker(closers[0]))


def _raw(value: Any) -> str:
    return value if isinstance(value, str) else write_json(value)
