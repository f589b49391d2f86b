"""Convert a tool's JSON schema to a grammar, in the notation in which a family writes values.

Properties come in the order of the schema, and only those, if it names any. Constraints that a
grammar cannot express are noted and not enforced.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from dovetail_parsers.arguments.schema import Schema
from dovetail_parsers.constraint.custom_grammar import GRAMMAR_KEYWORD, parse_lark_grammar
from dovetail_parsers.constraint.keywords import (
    has_huge_bound,
    integer_bounds,
    is_bounded,
    is_non_negative,
    is_only_non_negative,
    present_keywords,
    requires_non_empty,
    unenforced_keywords,
    unenforced_lengths,
)
from dovetail_parsers.constraint.limits import MAX_SCHEMA_STEPS, StepBudget
from dovetail_parsers.constraint.members import MemberDelimiters, ObjectMember, ordered_members
from dovetail_parsers.constraint.nodes import (
    EMPTY,
    Node,
    Rules,
    choice,
    marker,
    optional,
    repeat,
    sequence,
    text,
)
from dovetail_parsers.constraint.notation import FILLED_STRING, INTEGER, NUMBER, POSITIVE, Notation
from dovetail_parsers.constraint.options import (
    ConstantOption,
    Option,
    SchemaReader,
    TypedOption,
    has_open_keys,
    properties,
    required_keys,
)
from dovetail_parsers.constraint.pattern import string_pattern
from dovetail_parsers.constraint.ranges import integer_between
from dovetail_parsers.constraint.schema_cache import SchemaFormCache
from dovetail_parsers.constraint.style import JsonStringStyle, RawStyle

_MAX_ITEMS = 100  # larger counts are not enforced: engines expand repetitions
# Schemas per tool and properties per object; beyond the limit any value is allowed. Each property
# is a rule within the rule before it, and llguidance crashes at 1,500 such levels.
MAX_VALUES = 1_000
_MAX_PROPERTIES = 250
_MAX_OPTIONS = 2_000  # alternatives of all values of a tool
MAX_DEPTH = 32
_OPEN = TypedOption("object", {})


class ValueGrammar:
    """Grammars of the values under one root schema, in one notation."""

    __slots__ = (
        "_budget", "_cache", "_count", "_notation", "_option_count", "_reader", "rules",
    )  # fmt: skip

    def __init__(self, root: Schema, notation: Notation, rules: Rules) -> None:
        self._budget = StepBudget(MAX_SCHEMA_STEPS, rules.budget)
        self._reader = SchemaReader(root, self._budget)
        self._notation = notation
        self.rules = rules
        self._cache = SchemaFormCache(rules)
        self._count = self._option_count = 0

    def options(self, schema: Schema) -> list[Option]:
        """Return the constants and the single-typed schemas that a schema allows."""
        found = [self._within_limits(option) for option in self._reader.options(schema)]
        if self._budget.exhausted:
            self._note_size()
        return found

    def _within_limits(self, option: Option) -> Option:
        if isinstance(option, ConstantOption) or option.kind != "object":
            return option
        names = properties(option.schema)
        self._budget.spend_keys(len(names) + sum(map(len, names)))
        if len(names) <= _MAX_PROPERTIES:
            return option
        self._note_size()
        return _OPEN

    def _note_size(self) -> None:
        self.rules.note("a schema is too large or too deep and is only partly enforced")

    def value(self, schema: Schema, depth: int = 0) -> Node:
        """Return the grammar of any value that satisfies the schema."""
        self._count += 1
        if self._count > MAX_VALUES or depth > MAX_DEPTH or self._budget.exhausted:
            self._note_size()
            return self.any_value()
        return choice(*(self.option(option, depth) for option in self.options(schema)))

    def option(self, option: Option, depth: int = 0) -> Node:
        if isinstance(option, ConstantOption):
            return self._notation.literal(option.value)
        self._option_count += 1
        if self._option_count > _MAX_OPTIONS:
            self._note_size()
            return self.any_value()
        hint = f"{self._notation.name}-{option.kind}"
        return self._cache.get_or_build(hint, option.schema, lambda: self._typed(option, depth))

    def arguments(self, schema: Schema) -> Node:
        """Return the grammar of the arguments of a call, which are always an object."""
        return choice(*map(self.option, self.objects(schema)))

    def objects(self, schema: Schema) -> list[TypedOption]:
        """Return the objects that a schema allows; any object if it names none."""
        found = [
            option
            for option in self.options(schema)
            if isinstance(option, TypedOption) and option.kind == "object"
        ]
        return found or [TypedOption("object", {})]

    def any_value(self) -> Node:
        """Return the grammar of any value."""
        return self.rules.define_once(f"{self._notation.name}-any", self._any_value)

    def note_raw(self, schema: Schema) -> None:
        """Note the constraints of a raw string, none of which is enforced."""
        self._note(present_keywords(schema, "pattern", "minLength", "maxLength"))

    def _note(self, keywords: Iterable[str]) -> None:
        for keyword in keywords:
            self.rules.note(f"{keyword} is not enforced")

    def _typed(self, option: TypedOption, depth: int) -> Node:
        self._note(unenforced_keywords(option.kind, option.schema))
        match option.kind:
            case "string":
                return self._string(option.schema)
            case "integer":
                return self._integer(option.schema)
            case "number":
                return self._number(option.schema)
            case "boolean":
                return choice(*map(text, self._notation.words[:2]))
            case "null":
                return text(self._notation.words[2])
            case "array":
                return self._array(option.schema, depth)
            case "object":
                return self._object(option.schema, depth)
        return self.any_value()

    def _integer(self, schema: Schema) -> Node:
        if not is_bounded(schema):
            return INTEGER
        if has_huge_bound(schema):
            self.rules.note("minimum and maximum of huge integers are not enforced")
        form = integer_between(*integer_bounds(schema))
        return INTEGER if form is None else form

    def _number(self, schema: Schema) -> Node:
        """A number. Of its bounds, only non-negativity is enforced."""
        if is_bounded(schema) and not is_only_non_negative(schema):
            self.rules.note("minimum and maximum of numbers are not enforced")
        return POSITIVE if is_non_negative(schema) else NUMBER

    def _string(self, schema: Schema) -> Node:
        if GRAMMAR_KEYWORD in schema:
            return self._custom_grammar(schema)
        if not self._notation.quoted:
            self.note_raw(schema)
            return self._notation.string
        pattern = string_pattern(schema)
        if pattern is not None:
            self._note(present_keywords(schema, "minLength", "maxLength"))
            return pattern
        self._note([*present_keywords(schema, "pattern"), *unenforced_lengths(schema)])
        return FILLED_STRING if requires_non_empty(schema) else self._notation.string

    def _custom_grammar(self, schema: Schema) -> Node:
        """A custom tool's text, in the notation's quotes."""
        quote = self._notation.quote
        style = JsonStringStyle() if self._notation.quoted else RawStyle((quote,))
        form = parse_lark_grammar(schema[GRAMMAR_KEYWORD], style, self.rules)
        return (
            self._notation.string if form is None else sequence(marker(quote), form, marker(quote))
        )

    def _object(self, schema: Schema, depth: int) -> Node:
        named = properties(schema)
        if has_open_keys(schema):
            return self._map(schema.get("additionalProperties"), depth)
        must = required_keys(schema)
        members = [
            ObjectMember(
                sequence(self._key(name), self.value(_schema(sub), depth + 1)), name in must
            )
            for name, sub in named.items()
        ]
        frame = MemberDelimiters(between=self._comma())
        return sequence(text("{"), ordered_members(members, frame, self.rules), text("}"))

    def _key(self, name: str) -> Node:
        return sequence(self._notation.key(name), text(":"), self._notation.space)

    def _comma(self) -> Node:
        return sequence(text(","), self._notation.space)

    def _map(self, values: object, depth: int) -> Node:
        """An object with arbitrary keys."""
        if values is False:
            return text("{}")
        value = self.value(values, depth + 1) if isinstance(values, Mapping) else self.any_value()
        key = self.rules.share(f"{self._notation.name}-key", self._notation.any_key)
        pair = sequence(key, text(":"), self._notation.space, value)
        return sequence(text("{"), self._list(pair, 0, None), text("}"))

    def _list(self, item: Node, min_count: int, max_count: int | None) -> Node:
        """Items separated by commas."""
        if max_count == 0:
            return EMPTY
        rest = None if max_count is None else max_count - 1
        more = repeat(sequence(self._comma(), item), max(min_count - 1, 0), rest)
        return sequence(item, more) if min_count else optional(sequence(item, more))

    def _array(self, schema: Schema, depth: int) -> Node:
        first = schema.get("prefixItems")
        if isinstance(first, list | tuple) and first:
            return self._tuple(first, schema, depth)
        items = schema.get("items")
        item = self.value(items, depth + 1) if isinstance(items, Mapping) else self.any_value()
        min_items, max_items = _limit(schema.get("minItems")) or 0, _limit(schema.get("maxItems"))
        if max_items is not None and max_items < min_items:
            max_items = None
        return sequence(text("["), self._list(item, min_items, max_items), text("]"))

    def _tuple(self, first: "list[Any] | tuple[Any, ...]", schema: Schema, depth: int) -> Node:
        """All of the first items; more only if the schema describes them."""
        parts: list[Node] = []
        for item in first:
            parts += [self._comma(), self.value(_schema(item), depth + 1)]
        items = schema.get("items")
        if isinstance(items, Mapping):
            parts.append(repeat(sequence(self._comma(), self.value(items, depth + 1))))
        return sequence(text("["), *parts[1:], text("]"))

    def _any_value(self) -> Node:
        words = map(text, self._notation.words)
        hint = self._notation.name
        return choice(
            self.rules.share(f"{hint}-string", self._notation.string),
            self.rules.share(f"{hint}-number", NUMBER),
            sequence(text("["), self._list(self.any_value(), 0, None), text("]")),
            self._map(None, 0),
            *words,
        )


def _schema(value: object) -> Schema:
    return value if isinstance(value, Mapping) else {}


def _limit(value: object) -> int | None:
    """Return a limit on the number of items if it can be enforced."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_ITEMS:
        return None
    return value
