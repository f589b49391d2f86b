"""Check JSON schemas that the output must satisfy: a schema with a mistake cannot be enforced."""

from collections.abc import Mapping
from typing import Any

from dovetail_model import InvalidRequest

_TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
_SUBSCHEMAS = frozenset(
    ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
     "unevaluatedItems", "unevaluatedProperties", "additionalItems")
)  # fmt: skip
_SCHEMA_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_SCHEMA_MAPS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
)
_COUNTS = frozenset(
    ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
     "minContains", "maxContains")
)  # fmt: skip
_NUMBERS = frozenset(("minimum", "maximum", "multipleOf"))
_MAX_NAME_CHARS = 64  # of each name in the path of an error
_TEXTS = frozenset(("pattern", "format", "$ref", "title", "description"))


def check_schema(schema: object, path: str) -> None:
    """Raise `InvalidRequest`, with the path of the mistake, if this is not a JSON schema."""
    if not isinstance(schema, Mapping):
        raise _mistake(path, "must be a JSON schema (an object)", schema)
    _SchemaCheck(schema, path).check(schema, path)


class _SchemaCheck:
    """Checks the schemas below one root, which references point into."""

    __slots__ = ("_path", "_root")

    def __init__(self, root: Mapping[str, Any], path: str) -> None:
        self._root = root
        self._path = path

    def check(self, schema: object, path: str) -> None:
        # Every level of the body is checked for its depth before, so recursion is bounded.
        if isinstance(schema, bool):
            return
        if not isinstance(schema, Mapping):
            raise _mistake(path, "must be a JSON schema", schema)
        for keyword, value in schema.items():
            self._keyword(keyword, value, _child(path, keyword))

    def _keyword(self, keyword: str, value: object, path: str) -> None:
        if keyword == "type":
            _check_type(value, path)
        elif keyword == "required":
            _check_texts(value, path)
        elif keyword == "enum":
            _check_list(value, path)
        elif keyword in _SUBSCHEMAS:
            self._subschema(keyword, value, path)
        elif keyword in _SCHEMA_LISTS:
            for at, part in enumerate(_check_list(value, path)):
                self.check(part, f"{path}[{at}]")
        elif keyword in _SCHEMA_MAPS:
            for name, part in _check_map(value, path).items():
                self.check(part, _child(path, name))
        else:
            self._value(keyword, value, path)

    def _subschema(self, keyword: str, value: object, path: str) -> None:
        if keyword == "items" and isinstance(value, list):  # the form of earlier drafts
            for at, part in enumerate(value):
                self.check(part, f"{path}[{at}]")
        else:
            self.check(value, path)

    def _value(self, keyword: str, value: object, path: str) -> None:
        if keyword in _COUNTS and not _is_count(value):
            raise _mistake(path, "must be an integer >= 0", value)
        if keyword in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise _mistake(path, "must be a number", value)
        if keyword in _TEXTS and not isinstance(value, str):
            raise _mistake(path, "must be a string", value)
        if keyword == "$ref" and isinstance(value, str) and not self._resolves(value):
            raise _mistake(path, "refers to a schema that does not exist", value)

    def _resolves(self, reference: str) -> bool:
        """Return whether a reference into this schema has a target; anchors are not followed."""
        if not reference.startswith("#/"):
            return reference == "#"
        target: object = self._root
        for step in reference[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, Mapping) and name in target:
                target = target[name]
            elif isinstance(target, list) and name.isdigit() and int(name) < len(target):
                target = target[int(name)]
            else:
                return False
        return isinstance(target, Mapping | bool)


def _child(path: str, name: str) -> str:
    """Return the path of a child. A long name is clipped: every value below it copies the path."""
    return f"{path}.{name[:_MAX_NAME_CHARS]}"


def _is_count(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer() and value >= 0
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_type(value: object, path: str) -> None:
    """Some clients write types in capitals, as Gemini's API does."""
    names = value if isinstance(value, list) and value else [value]
    for name in names:
        if not isinstance(name, str) or name.lower() not in _TYPES:
            raise _mistake(path, f"must be one of {', '.join(sorted(_TYPES))}", name)


def _check_texts(value: object, path: str) -> None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise _mistake(path, "must be a list of names", value)


def _check_list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise _mistake(path, "must be a list that is not empty", value)
    return value


def _check_map(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _mistake(path, "must be an object", value)
    return value


def _mistake(path: str, rule: str, value: object) -> InvalidRequest:
    return InvalidRequest(f"{path}: {rule}, got {_shown(value)}", param=path)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
