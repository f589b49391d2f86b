"""Schema keywords that limit numbers and strings, and keywords that no grammar enforces."""

from math import ceil, floor

from dovetail_parsers.arguments.schema import Schema

_MAX_BOUND = 10**16  # exact as a double; llguidance does not read many more digits

_UNENFORCED = ("not", "if", "dependentRequired", "dependentSchemas")
_UNENFORCED_BY_TYPE = {
    "integer": ("multipleOf",),
    "number": ("multipleOf",),
    "array": ("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"),
    "object": (
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "unevaluatedProperties",
    ),
}
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def unenforced_keywords(kind: str, schema: Schema) -> list[str]:
    """Return the keywords of a schema that its grammar does not enforce."""
    names = (*_UNENFORCED, *_UNENFORCED_BY_TYPE.get(kind, ()))
    return [name for name in names if schema.get(name) not in (None, False)]


def present_keywords(schema: Schema, *names: str) -> list[str]:
    return [name for name in names if name in schema]


def integer_bounds(schema: Schema) -> tuple[int | None, int | None]:
    """Return the smallest and largest integer. Invalid or huge bounds are ignored."""
    low = _read_bounds(schema, "minimum", "exclusiveMinimum")
    high = _read_bounds(schema, "maximum", "exclusiveMaximum")
    lower = [floor(value) + 1 if strict else ceil(value) for value, strict in low]
    upper = [ceil(value) - 1 if strict else floor(value) for value, strict in high]
    return max(lower, default=None), min(upper, default=None)


def is_bounded(schema: Schema) -> bool:
    return bool(present_keywords(schema, *_BOUNDS))


def has_huge_bound(schema: Schema) -> bool:
    """Return whether the schema has a bound that is too large to be enforced."""
    bounds = (schema.get(name) for name in _BOUNDS)
    return any(isinstance(one, int | float) and abs(one) > _MAX_BOUND for one in bounds)


def is_non_negative(schema: Schema) -> bool:
    """Return whether negative numbers are excluded."""
    return any(value >= 0 for value, _ in _read_bounds(schema, "minimum", "exclusiveMinimum"))


def is_only_non_negative(schema: Schema) -> bool:
    """Return whether `minimum: 0` is the only bound."""
    return present_keywords(schema, *_BOUNDS) == ["minimum"] and schema["minimum"] == 0


def requires_non_empty(schema: Schema) -> bool:
    """Return whether a string must not be empty."""
    min_length = schema.get("minLength")
    return isinstance(min_length, int) and min_length > 0


def unenforced_lengths(schema: Schema) -> list[str]:
    """Return length keywords that are not enforced: counting characters costs an engine seconds."""
    counted = schema.get("minLength") in (None, 0, 1)
    return [*([] if counted else ["minLength"]), *present_keywords(schema, "maxLength")]


def _read_bounds(schema: Schema, name: str, exclusive: str) -> list[tuple[float, bool]]:
    """Return a schema's bounds, and whether each is exclusive; old schemas use a flag for it."""
    found: list[tuple[float, bool]] = []
    flag = schema.get(exclusive)
    for value, strict in ((schema.get(name), flag is True), (flag, True)):
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if abs(value) <= _MAX_BOUND:
            found.append((value, strict))
    return found
