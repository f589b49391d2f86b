"""A cache of the grammars of schemas, which may be recursive."""

from collections.abc import Callable

from dovetail_parsers.arguments.schema import Schema
from dovetail_parsers.constraint.nodes import Node, Ref, Rules


class SchemaFormCache:
    """Grammars by the identity of their schema, which is stored so that its id stays unique."""

    __slots__ = ("_forms", "_rules")

    def __init__(self, rules: Rules) -> None:
        self._forms: dict[tuple[str, int], tuple[Schema, Node | None]] = {}
        self._rules = rules

    def get_or_build(self, hint: str, schema: Schema, build: Callable[[], Node]) -> Node:
        """Return the result of `build`, built once; a named rule if the schema is recursive."""
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
        """Name the rule of a schema that is met inside itself while it is built."""
        form = Ref(self._rules.reserve(key[0]))
        self._forms[key] = (schema, form)
        return form
