"""Arguments as a tree of tags, as a form. An object without named properties is JSON in a tag."""

from collections.abc import Mapping

from dovetail_parsers.arguments.schema import Schema
from dovetail_parsers.arguments.tree import Tree
from dovetail_parsers.constraint.members import Frame, Member, ordered
from dovetail_parsers.constraint.nodes import (
    Free,
    Node,
    Rules,
    choice,
    marker,
    sequence,
    several,
    text,
)
from dovetail_parsers.constraint.notation import JSON
from dovetail_parsers.constraint.options import (
    Constant,
    Option,
    Typed,
    names_none,
    properties,
    required,
)
from dovetail_parsers.constraint.raw_value import raw_value
from dovetail_parsers.constraint.schema import DEEPEST, MOST_VALUES, Values
from dovetail_parsers.constraint.schema_cache import Known


def tree_arguments(body: Tree, schema: Schema, rules: Rules) -> Node:
    """The parameters' tags, and the tag that closes the call."""
    form = _TreeForm(body, schema, rules)
    end = marker(f"{body.token}</{body.call}>")
    return sequence(form.children(form.values.objects(schema)), end)


class _TreeForm:
    __slots__ = ("_count", "_depth", "_known", "_rules", "_token", "values")

    def __init__(self, body: Tree, root: Schema, rules: Rules) -> None:
        self.values = Values(root, JSON, rules)
        self._known = Known(rules)
        self._rules = rules
        self._token = body.token
        self._count = self._depth = 0

    def children(self, objects: list[Typed]) -> Node:
        return choice(*map(self._children, objects))

    def _children(self, option: Typed) -> Node:
        return self._known.form("tree", option.schema, lambda: self._object(option.schema))

    def _object(self, schema: Schema) -> Node:
        must = required(schema)
        members = []
        for name, sub in properties(schema).items():
            options = [o for o in self.values.options(_schema(sub)) if not _is_null(o)]
            # a null is written by leaving the tag out
            needed = name in must and len(options) == len(self.values.options(_schema(sub)))
            if options:
                members.append(Member(self._tag(name, options), needed))
        return ordered(members, Frame(), self._rules)

    def _tag(self, name: str, options: list[Option]) -> Node:
        opener = sequence(marker(self._token), text(f"<{name}>"))
        self._depth += 1
        contents = choice(*self._contents(name, options))
        self._depth -= 1
        return sequence(opener, contents)

    def _contents(self, name: str, options: list[Option]) -> list[Node]:
        """What the tag holds, with its closer."""
        closer = sequence(marker(self._token), text(f"</{name}>"))
        self._count += 1
        spell_out = self._count < MOST_VALUES and self._depth < DEEPEST
        leaves: list[Option] = []
        forms: list[Node] = []
        for option in options:
            if not spell_out or not isinstance(option, Typed):
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
        if isinstance(form, Free) and self._token:
            # the token is in no data, so that one automaton does for all tags
            return sequence(Free(stops=(f"{self._token}</",)), text(f"{name}>"))
        return form

    def _items(self, option: Typed) -> Node:
        items = _schema(option.schema.get("items"))

        def tag() -> Node:
            return self._tag("item", self.values.options(items))

        return several(self._known.form("tree-item", items, tag))


def _named(option: Typed) -> bool:
    return not names_none(option.schema)


def _is_null(option: Option) -> bool:
    if isinstance(option, Constant):
        return option.value is None
    return option.kind == "null"


def _schema(value: object) -> Schema:
    return value if isinstance(value, Mapping) else {}
