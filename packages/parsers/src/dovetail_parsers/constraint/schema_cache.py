"""A cache of the grammars of schemas, which may refer to themselves."""

from collections.abc import Callable

from dovetail_parsers.arguments.schema import Schema
from dovetail_parsers.constraint.nodes import Node, Ref, Rules


class SchemaFormCache:
    """Grammars by the identity of their schema, which is stored too so that its id stays unique."""

    __slots__ = ("_forms", "_rules")

    def __init__(self, rules: Rules) -> None:
        self._forms: dict[tuple[str, int], tuple[Schema, Node | None]] = {}
        self._rules = rules

    def get_or_build(self, hint: str, schema: Schema, build: Callable[[], Node]) -> Node:
        """What `build` makes of the schema, made once; a named rule where it refers to itself."""
        key = (hint, id(schema))
        if key in self._forms:
            return self._forms[key][1] or self._name(key, schema)
        self._forms[key] = (schema, None)
        form = build()
        own = self._forms[key][1]
        if isinstance(own, Ref):
            shared = self._rules.define(own.rule, form)
        else:
            shared = self._rules.share(hint, form)
        self._forms[key] = (schema, shared)
        return shared

    def _name(self, key: tuple[str, int], schema: Schema) -> Node:
        """It is being built, and met inside itself."""
        form = Ref(self._rules.reserve(key[0]))
        self._forms[key] = (schema, form)
        return form
