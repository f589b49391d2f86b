"""Grammars of parameters in tags: each with its name and its delimited value."""

from collections.abc import Iterator, Mapping

from dovetail_parsers.arguments.schema import Schema, json_type
from dovetail_parsers.constraint.bodies import GuidedTool
from dovetail_parsers.constraint.members import MemberDelimiters, ObjectMember, ordered_members
from dovetail_parsers.constraint.nodes import Chars, Node, Rules, choice, repeat, sequence, text
from dovetail_parsers.constraint.notation import JSON
from dovetail_parsers.constraint.options import (
    ConstantOption,
    Option,
    TypedOption,
    has_open_keys,
    properties,
    required_keys,
)
from dovetail_parsers.constraint.raw_value import raw_value
from dovetail_parsers.constraint.schema import ValueGrammar
from dovetail_parsers.constraint.walk import TableWalk, edge_grammar, spelled_grammar
from dovetail_parsers.grammar import CallAction, Channel, Mode
from dovetail_parsers.writer import is_value, value_edge

_KINDS = ("string", "number", "boolean", "null", "object", "array")
_ANY_KEY = repeat(Chars((("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"), ("-", "."))), 1)


def parameters_grammar(
    walk: TableWalk, name_mode: str, tool: GuidedTool, rules: Rules
) -> tuple[Node, str]:
    """Return the grammar from a tool's name to the end of the call, and the mode after it."""
    return _Parameters(walk, tool, rules).build(name_mode)


class _Parameters:
    __slots__ = ("_key_mode", "_rules", "_tool", "_values", "_walk")

    def __init__(self, walk: TableWalk, tool: GuidedTool, rules: Rules) -> None:
        self._walk = walk
        self._tool = tool
        self._rules = rules
        self._values = ValueGrammar(tool.schema, JSON, rules)
        self._key_mode = ""

    def build(self, name_mode: str) -> tuple[Node, str]:
        first, self._key_mode = self._walk.path_to(name_mode, _is_key)
        empty, behind = self._walk.path_to(name_mode, _never, CallAction.CLOSE)
        args = self._behind_value()
        frame = MemberDelimiters(
            first=first,
            between=self._walk.path_to(args, _is_key)[0],
            end=self._walk.path_to(args, _never, CallAction.CLOSE)[0],
            empty=empty,
        )
        lists = [self._list(option, frame) for option in self._values.objects(self._tool.schema)]
        return choice(*lists), behind

    def _list(self, option: TypedOption, frame: MemberDelimiters) -> Node:
        """The parameters in the order of the schema; any parameters if it names none."""
        named = properties(option.schema)
        if has_open_keys(option.schema):
            others = option.schema.get("additionalProperties")
            one = self._rules.share("parameter", self._parameter(_ANY_KEY, others))
            some = sequence(frame.first, one, repeat(sequence(frame.between, one)), frame.end)
            return choice(some, frame.empty)
        must = required_keys(option.schema)
        spell = self._walk.modes[self._key_mode].spell
        members = [
            ObjectMember(self._parameter(spelled_grammar(spell, name), sub), name in must)
            for name, sub in named.items()
        ]
        return ordered_members(members, frame, self._rules)

    def _parameter(self, key: Node, schema: object) -> Node:
        """A key and its value. Formats with typed values have one path per type."""
        groups: dict[tuple[Node, str], list[Option]] = {}
        options = self._values.options(schema if isinstance(schema, Mapping) else {})
        for option in _each_kind(options):
            groups.setdefault(self._path_to_value(_kind(option)), []).append(option)
        ways = [
            sequence(before, self._value(mode, group)) for (before, mode), group in groups.items()
        ]
        return sequence(key, choice(*ways))

    def _path_to_value(self, kind: str) -> tuple[Node, str]:
        found = value_edge(self._walk.modes, self._key_mode, kind)
        if found is None:
            return self._walk.path_to(self._key_mode, is_value)
        return edge_grammar(*found), found[1].mode

    def _value(self, mode: str, options: list[Option]) -> Node:
        edges = self._walk.modes[mode].on
        edge = next(iter(edges.values()))
        closers = tuple(closer for closer, to in edges.items() if to == edge)
        never = (*self._walk.modes[mode].tolerate, *self._longer_openers())
        return sequence(raw_value(options, closers, self._values, never), text(edge.pad))

    def _longer_openers(self) -> Iterator[str]:
        """Yield the suffixes that would turn the marker before a value into another marker."""
        marks = self._walk.modes[self._key_mode].edges
        for mark in marks:
            longer = (other[len(mark) :].strip() for other in marks if other.startswith(mark))
            yield from filter(None, longer)

    def _behind_value(self) -> str:
        mode = self._path_to_value("string")[1]
        return next(iter(self._walk.modes[mode].on.values())).mode


def _each_kind(options: list[Option]) -> list[Option]:
    """Return the options, with a value of any type split into one option per type."""
    anything: Schema = {}
    found: list[Option] = []
    for option in options:
        if isinstance(option, TypedOption) and option.kind == "any":
            found += [TypedOption(kind, anything) for kind in _KINDS]
        else:
            found.append(option)
    return found


def _kind(option: Option) -> str:
    """Return the type's name as the writer knows it."""
    kind = json_type(option.value) if isinstance(option, ConstantOption) else option.kind
    return "number" if kind == "integer" else kind


def _is_key(mode: Mode) -> bool:
    return mode.channel is Channel.KEY


def _never(_: Mode) -> bool:
    return False
