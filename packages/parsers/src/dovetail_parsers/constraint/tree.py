"""The grammar of arguments as a tree of tags; an object without named properties is JSON."""

from collections.abc import Mapping

from dovetail_parsers.arguments.schema import Schema
from dovetail_parsers.arguments.tree import TagTree
from dovetail_parsers.constraint.members import MemberDelimiters, ObjectMember, ordered_members
from dovetail_parsers.constraint.nodes import (
    FreeText,
    Node,
    Rules,
    choice,
    marker,
    repeat,
    sequence,
    text,
)
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
from dovetail_parsers.constraint.schema import MAX_DEPTH, MAX_VALUES, ValueGrammar
from dovetail_parsers.constraint.schema_cache import SchemaFormCache


def tree_arguments_grammar(body: TagTree, schema: Schema, rules: Rules) -> Node:
    """Return the grammar of the parameters' tags and the closing tag of the call."""
    form = _TreeGrammar(body, schema, rules)
    end = marker(f"{body.token}</{body.call}>")
    return sequence(form.children(form.values.objects(schema)), end)


class _TreeGrammar:
    __slots__ = ("_count", "_depth", "_known", "_rules", "_token", "values")

    def __init__(self, body: TagTree, root: Schema, rules: Rules) -> None:
        self.values = ValueGrammar(root, JSON, rules)
        self._known = SchemaFormCache(rules)
        self._rules = rules
        self._token = body.token
        self._count = self._depth = 0

    def children(self, objects: list[TypedOption]) -> Node:
        return choice(*map(self._children, objects))

    def _children(self, option: TypedOption) -> Node:
        return self._known.get_or_build("tree", option.schema, lambda: self._object(option.schema))

    def _object(self, schema: Schema) -> Node:
        must = required_keys(schema)
        members = []
        for name, sub in properties(schema).items():
            options = [o for o in self.values.options(_schema(sub)) if not _is_null(o)]
            # a null is written by omitting the tag
            needed = name in must and len(options) == len(self.values.options(_schema(sub)))
            if options:
                members.append(ObjectMember(self._tag(name, options), needed))
        return ordered_members(members, MemberDelimiters(), self._rules)

    def _tag(self, name: str, options: list[Option]) -> Node:
        opener = sequence(marker(self._token), text(f"<{name}>"))
        self._depth += 1
        contents = choice(*self._contents(name, options))
        self._depth -= 1
        return sequence(opener, contents)

    def _contents(self, name: str, options: list[Option]) -> list[Node]:
        """Return the possible contents of a tag, with its closer."""
        closer = sequence(marker(self._token), text(f"</{name}>"))
        self._count += 1
        spell_out = self._count < MAX_VALUES and self._depth < MAX_DEPTH
        leaves: list[Option] = []
        forms: list[Node] = []
        for option in options:
            if not spell_out or not isinstance(option, TypedOption):
                leaves.append(option)
            elif option.kind == "array":
                forms.append(sequence(self._items(option), closer))
            elif option.kind == "object" and _named(option):
                forms.append(sequence(self._children(option), closer))
            else:
                leaves.append(option)
        if leaves:
            forms.append(self._leaf(name, leaves))
        return forms

    def _leaf(self, name: str, options: list[Option]) -> Node:
        closer = f"{self._token}</{name}>"
        form = raw_value(options, (closer,), self.values)
        if isinstance(form, FreeText) and self._token:
            # data never contains the token, so one automaton serves all tags
            return sequence(FreeText(stops=(f"{self._token}</",)), text(f"{name}>"))
        return form

    def _items(self, option: TypedOption) -> Node:
        items = _schema(option.schema.get("items"))

        def tag() -> Node:
            return self._tag("item", self.values.options(items))

        return repeat(self._known.get_or_build("tree-item", items, tag))


def _named(option: TypedOption) -> bool:
    return not has_open_keys(option.schema)


def _is_null(option: Option) -> bool:
    if isinstance(option, ConstantOption):
        return option.value is None
    return option.kind == "null"


def _schema(value: object) -> Schema:
    return value if isinstance(value, Mapping) else {}
