"""Split a JSON schema into the constants and single-typed schemas that it allows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail_parsers.arguments.schema import ANY, Schema, json_type, resolve_reference
from dovetail_parsers.constraint.limits import StepBudget

_COMBINED = ("anyOf", "oneOf")
_ANNOTATION_KEYWORDS = {"title", "description", "default", "examples", "deprecated", "$comment"}
_MAX_DEPTH = 64
_UNRESOLVED: Schema = {}


@dataclass(frozen=True)
class ConstantOption:
    value: Any


@dataclass(frozen=True)
class TypedOption:
    """A schema of one type, with references and combinations resolved. `any`: no type given."""

    kind: str
    schema: Schema


Option = ConstantOption | TypedOption


class SchemaReader:
    """Reads the schemas under one root, within a budget: schemas beyond it allow any value.

    Resolved schemas are cached by identity, because many references may lead to the same one.
    """

    __slots__ = ("_budget", "_incomplete", "_resolved", "root")

    def __init__(self, root: Schema, budget: StepBudget) -> None:
        self.root = root
        self._budget = budget
        self._resolved: dict[int, tuple[Schema, Schema]] = {}  # keeps schemas, so ids stay unique
        self._incomplete = False  # whether a schema was met inside itself, or too deep

    def options(self, schema: Schema) -> list[Option]:
        """Return every known way in which a value may satisfy the schema."""
        return list(self._options(schema, ())) or [TypedOption("any", {})]

    def _options(self, schema: Schema, around: tuple[int, ...]) -> Iterator[Option]:
        """`around` are the schemas that contain this one as an alternative, to detect recursion."""
        schema = self.resolve(schema)
        if id(schema) in around:
            return
        if len(around) > _MAX_DEPTH or self._budget.exhausted:
            yield TypedOption("any", {})
            return
        for name in _COMBINED:
            combined = _schemas(schema.get(name))
            if combined:
                rest = {key: value for key, value in schema.items() if key != name}
                yield from self._alternatives(rest, combined, (*around, id(schema)))
                return
        yield from self._simple(schema)

    def _alternatives(
        self, rest: Schema, combined: list[Schema], around: tuple[int, ...]
    ) -> Iterator[Option]:
        for part in combined:
            if self._budget.exhausted:
                yield TypedOption("any", {})
                return
            merger = _SchemaMerger(rest, self._budget)
            merger.add(self.resolve(part))
            yield from self._options(merger.result(), around)

    def resolve(self, schema: Schema, depth: int = 0) -> Schema:
        """Return the schema merged with its references and all that it must satisfy."""
        self._budget.spend()
        if self._budget.exhausted:
            return {}
        if "$ref" not in schema and "allOf" not in schema:
            return schema
        known = self._resolved.get(id(schema))
        if known is not None:
            self._incomplete |= known[1] is _UNRESOLVED
            return known[1]
        if depth > _MAX_DEPTH:
            self._incomplete = True
            return {}
        self._resolved[id(schema)] = (schema, _UNRESOLVED)  # inside itself it adds nothing
        merged = self._merge_parts(schema, depth)
        if depth == 0 and self._incomplete:
            # Parts of a cycle are complete only together, as parts of this schema.
            self._resolved.clear()
            self._incomplete = False
        self._resolved[id(schema)] = (schema, merged)
        return merged

    def _merge_parts(self, schema: Schema, depth: int) -> Schema:
        target = resolve_reference(schema.get("$ref"), self.root)
        parts = [*([target] if target is not None else []), *_schemas(schema.get("allOf"))]
        own = {k: v for k, v in schema.items() if k not in ("$ref", "allOf")}
        merger = _SchemaMerger(own, self._budget)
        for part in parts:
            merger.add(self.resolve(part, depth + 1))
        return merger.result()

    def _simple(self, schema: Schema) -> Iterator[Option]:
        kinds = _kinds(schema)
        constants = _constants(schema)
        if constants is not None:
            self._budget.spend_constants(constants)
            allowed = [value for value in constants if not kinds or _fits(value, kinds)]
            yield from map(ConstantOption, allowed or constants)
            if schema.get("nullable") is True and None not in constants:
                yield ConstantOption(None)
            return
        for kind in kinds or [_implied(schema)]:
            yield TypedOption(kind, schema)


class _SchemaMerger:
    """Merges schemas into one: properties and required keys of all, other keywords of the first.

    While the first is empty, the next one replaces it: a recursive schema is then the same object
    again and is detected. Later ones are added to one copy, so the work is linear in their sizes.
    """

    __slots__ = ("_added", "_budget", "_merged", "_names", "_required", "_schema")

    def __init__(self, schema: Schema, budget: StepBudget) -> None:
        self._schema = schema
        self._budget = budget
        self._merged: dict[str, Any] | None = None  # a copy, once there is more than one schema
        self._names: dict[str, Any] | None = None
        self._required: dict[str, None] | None = None
        self._added: set[int] = set()

    def add(self, other: Schema) -> None:
        if id(other) in self._added or other is self._schema:
            return
        self._added.add(id(other))
        if self._merged is None:
            if self._schema.keys() <= _ANNOTATION_KEYWORDS:
                self._schema = other
                return
            self._merged = dict(self._schema)
        self._add_properties(self._merged, other)
        self._add_required(self._merged, other)
        for keyword, value in other.items():
            self._merged.setdefault(keyword, value)

    def _add_properties(self, merged: dict[str, Any], other: Schema) -> None:
        if "properties" not in merged or "properties" not in other:
            return
        theirs = properties(other)
        if self._names is None:
            self._names = dict(properties(merged))
            merged["properties"] = self._names
            self._budget.spend_keys(len(self._names))
        self._budget.spend_keys(len(theirs))
        for name, sub in theirs.items():
            self._names.setdefault(name, sub)

    def _add_required(self, merged: dict[str, Any], other: Schema) -> None:
        if "required" not in merged or "required" not in other:
            return
        theirs = required_keys(other)
        if self._required is None:
            self._required = dict.fromkeys(required_keys(merged))
            self._budget.spend_keys(len(self._required))
        self._budget.spend_keys(len(theirs))
        self._required |= dict.fromkeys(theirs)

    def result(self) -> Schema:
        """Return the merged schema: one of those given if no other adds to it."""
        if self._merged is None:
            return self._schema
        if self._required is not None:
            self._merged["required"] = list(self._required)
        return self._merged


def properties(schema: Schema) -> Mapping[str, Any]:
    """Return the properties that a schema names, including required ones."""
    named = schema.get("properties")
    found = dict(named) if isinstance(named, Mapping) else {}
    return found | {name: {} for name in required_keys(schema) if name not in found}


def has_open_keys(schema: Schema) -> bool:
    """Return whether an object's keys are open: none is named, and others are not forbidden.

    An empty `properties` without a statement on others means an object without any.
    """
    if properties(schema):
        return False
    others = schema.get("additionalProperties")
    return not isinstance(schema.get("properties"), Mapping) or others not in (None, False)


def required_keys(schema: Schema) -> list[str]:
    names = schema.get("required")
    if not isinstance(names, list | tuple):
        return []
    return [name for name in names if isinstance(name, str)]


def _constants(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return list(values) if isinstance(values, list | tuple) and values else None


def _fits(value: Any, kinds: list[str]) -> bool:
    kind = json_type(value)
    return kind in kinds or (kind == "integer" and "number" in kinds)


def _kinds(schema: Schema) -> list[str]:
    declared = schema.get("type")
    names = [declared] if isinstance(declared, str) else declared
    if not isinstance(names, list | tuple):
        return []
    kinds = [name.lower() for name in names if isinstance(name, str) and name.lower() in ANY]
    if kinds and schema.get("nullable") is True:
        kinds.append("null")
    if "number" in kinds and "integer" in kinds:
        kinds.remove("integer")
    return list(dict.fromkeys(kinds))


def _implied(schema: Schema) -> str:
    if isinstance(schema.get("properties"), Mapping):
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    return "string" if "pattern" in schema else "any"


def _schemas(value: object) -> list[Schema]:
    if not isinstance(value, list | tuple):
        return []
    return [part for part in value if isinstance(part, Mapping)]
