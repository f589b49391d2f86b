"""Split a JSON schema into the constants and single-typed schemas that it allows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail_parsers.arguments.schema import ANY, Schema, json_type, resolve_reference

_COMBINED = ("anyOf", "oneOf")
_ANNOTATION_KEYWORDS = {"title", "description", "default", "examples", "deprecated", "$comment"}
_MAX_STEPS = 20_000  # a few lines of references can describe more than any engine could store
_MAX_DEPTH = 64


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
    """Reads the schemas under one root, up to a limit: schemas beyond it allow any value."""

    __slots__ = ("_steps_left", "root")

    def __init__(self, root: Schema) -> None:
        self.root = root
        self._steps_left = _MAX_STEPS

    @property
    def exhausted(self) -> bool:
        """Whether the limit was reached, so that some schema was not read."""
        return self._steps_left <= 0

    def options(self, schema: Schema) -> list[Option]:
        """Return every known way in which a value may satisfy the schema."""
        return list(self._options(schema, ())) or [TypedOption("any", {})]

    def _options(self, schema: Schema, around: tuple[int, ...]) -> Iterator[Option]:
        """`around` are the schemas that contain this one as an alternative, to detect recursion."""
        schema = self.resolve(schema)
        if id(schema) in around:
            return
        if len(around) > _MAX_DEPTH or self._steps_left <= 0:
            yield TypedOption("any", {})
            return
        for name in _COMBINED:
            combined = _schemas(schema.get(name))
            if combined:
                rest = {key: value for key, value in schema.items() if key != name}
                for part in combined:
                    one = merge_schemas(rest, self.resolve(part))
                    yield from self._options(one, (*around, id(schema)))
                return
        yield from _simple(schema)

    def resolve(self, schema: Schema, depth: int = 0) -> Schema:
        """Return the schema merged with its references and all that it must satisfy."""
        self._steps_left -= 1
        if depth > _MAX_DEPTH or self._steps_left <= 0:
            return {}
        if "$ref" not in schema and "allOf" not in schema:
            return schema
        target = resolve_reference(schema.get("$ref"), self.root)
        parts = [*([target] if target is not None else []), *_schemas(schema.get("allOf"))]
        merged: Schema = {k: v for k, v in schema.items() if k not in ("$ref", "allOf")}
        for part in parts:
            merged = merge_schemas(merged, self.resolve(part, depth + 1))
        return merged


def merge_schemas(one: Schema, other: Schema) -> Schema:
    """Merge two schemas: properties and required keys of both, other keywords of the first.

    If the first is empty, return the other itself: a recursive schema is then the same object
    again and is detected.
    """
    if one.keys() <= _ANNOTATION_KEYWORDS:
        return other
    merged = {**other, **one}
    if "properties" in one and "properties" in other:
        ours, theirs = properties(one), properties(other)
        merged["properties"] = {**ours, **theirs, **ours}
    if "required" in one and "required" in other:
        merged["required"] = list(dict.fromkeys([*required_keys(other), *required_keys(one)]))
    return merged


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


def _simple(schema: Schema) -> Iterator[Option]:
    kinds = _kinds(schema)
    constants = _constants(schema)
    if constants is not None:
        allowed = [value for value in constants if not kinds or _fits(value, kinds)]
        yield from map(ConstantOption, allowed or constants)
        if schema.get("nullable") is True and None not in constants:
            yield ConstantOption(None)
        return
    for kind in kinds or [_implied(schema)]:
        yield TypedOption(kind, schema)


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
