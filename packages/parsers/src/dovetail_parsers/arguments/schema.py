"""Read a tool's JSON schema: the JSON types that the value of a parameter may have."""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

STRING = frozenset({"string"})
ANY = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})


def property_schema(schema: Schema, key: str, root: Schema) -> Schema:
    """Return the schema of one property, through references and combinations; empty if none."""
    for part in _parts(schema, root):
        found = _mapping(part.get("properties")).get(key)
        if isinstance(found, Mapping):
            return found
    for part in _parts(schema, root):
        rest = part.get("additionalProperties")
        if isinstance(rest, Mapping):
            return rest
    return {}


def item_schema(schema: Schema, root: Schema) -> Schema:
    """Return the schema of an array's items; empty if none."""
    for part in _parts(schema, root):
        items = part.get("items")
        if isinstance(items, Mapping):
            return items
    return {}


def allowed_types(schema: Schema, root: Schema) -> frozenset[str]:
    """Return the JSON types that a value may have. A schema without types allows any."""
    found: set[str] = set()
    for part in _parts(schema, root):
        found |= _own_types(part)
    return frozenset(found & ANY) or ANY


def _own_types(schema: Schema) -> set[str]:
    found: set[str] = set()
    declared = schema.get("type")
    if isinstance(declared, str):
        found.add(declared.lower())
    elif isinstance(declared, list | tuple):
        found |= {name.lower() for name in declared if isinstance(name, str)}
    if not found:
        values = schema.get("enum")
        if isinstance(values, list | tuple):
            found |= {json_type(value) for value in values}
        if "const" in schema:
            found.add(json_type(schema["const"]))
        if isinstance(schema.get("properties"), Mapping):
            found.add("object")
    if found and schema.get("nullable") is True:
        found.add("null")
    return found


def json_type(value: object) -> str:
    """Return the JSON type of a value."""
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case None:
            return "null"
        case Mapping():
            return "object"
        case _:
            return "array"


def _parts(schema: Schema, root: Schema) -> Iterator[Schema]:
    """Yield the schema and all that it refers to or combines, once: schemas may be recursive."""
    seen: set[int] = set()
    todo = [schema]
    while todo:
        part = todo.pop(0)
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        target = resolve_reference(part.get("$ref"), root)
        if target is not None:
            todo.append(target)
        for name in ("anyOf", "oneOf", "allOf"):
            options = part.get(name)
            if isinstance(options, list | tuple):
                todo += [option for option in options if isinstance(option, Mapping)]


def resolve_reference(reference: object, root: Schema) -> Schema | None:
    """Return the target of a `$ref` into the same document."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    node: object = root
    for step in reference[1:].split("/")[1:]:
        if not isinstance(node, Mapping):
            return None
        node = node.get(step.replace("~1", "/").replace("~0", "~"))
    return node if isinstance(node, Mapping) else None


def _mapping(value: object) -> Schema:
    return value if isinstance(value, Mapping) else {}
