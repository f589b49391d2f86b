"""Values between tags: strings unchanged, everything else as JSON, followed by the closer."""

from collections.abc import Sequence
from typing import Any

from dovetail_parsers.arguments.notation import write_json
from dovetail_parsers.constraint.custom_grammar import GRAMMAR_KEYWORD, parse_lark_grammar
from dovetail_parsers.constraint.nodes import FreeText, Node, choice, marker, sequence, text
from dovetail_parsers.constraint.options import ConstantOption, Option, TypedOption
from dovetail_parsers.constraint.schema import ValueGrammar
from dovetail_parsers.constraint.style import RawStyle


def raw_value(
    options: Sequence[Option],
    closers: tuple[str, ...],
    values: ValueGrammar,
    never: tuple[str, ...] = (),
) -> Node:
    """Return one of these values and its closer. Free text ends at the first closer: unlike the
    parser, a grammar cannot look ahead. It contains none of `never`.
    """
    texts = [o for o in options if isinstance(o, TypedOption) and o.kind in ("string", "any")]
    if len(texts) == 1 and GRAMMAR_KEYWORD in texts[0].schema:
        form = parse_lark_grammar(
            texts[0].schema[GRAMMAR_KEYWORD], RawStyle((*closers, *never)), values.rules
        )
        if form is not None:
            return sequence(form, choice(*map(marker, closers)))
    if texts:
        for option in texts:
            values.note_raw(option.schema)
        return FreeText(stops=closers, never=tuple(mark for mark in never if mark not in closers))
    forms = [
        text(_raw(option.value)) if isinstance(option, ConstantOption) else values.option(option)
        for option in options
    ]
    return sequence(choice(*forms), marker(closers[0]))


def _raw(value: Any) -> str:
    return value if isinstance(value, str) else write_json(value)
