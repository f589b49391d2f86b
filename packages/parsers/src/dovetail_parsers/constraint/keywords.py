"""Keywords of schemas that bound numbers and strings, and those that no grammar here expresses."""

from math import ceil, floor

from dovetail_parsers.arguments.schema import Schema

_LARGEST = 10**16  # all that is exact as a double; llguidance cannot read many digits more

_OF_ALL = ("not", "if", "dependentRequired", "dependentSchemas")
_OF_KIND = {
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


def not_expressed(kind: str, schema: Schema) -> list[str]:
    """The keywords of a schema that its grammar leaves out."""
    names = (*_OF_ALL, *_OF_KIND.get(kind, ()))
    return [name for name in names if schema.get(name) not in (None, False)]


def stated(schema: Schema, *names: str) -> list[str]:
    return [name for name in names if name in schema]


def integer_bounds(schema: Schema) -> tuple[int | None, int | None]:
    """The least and the greatest integer. Bounds that are no numbers, or huge, are none."""
    low = _each(schema, "minimum", "exclusiveMinimum")
    high = _each(schema, "maximum", "exclusiveMaximum")
    least = [floor(value) + 1 if strict else ceil(value) for value, strict in low]
    most = [ceil(value) - 1 if strict else floor(value) for value, strict in high]
    return max(least, default=None), min(most, default=None)


def is_bounded(schema: Schema) -> bool:
    return bool(stated(schema, *_BOUNDS))


def is_huge(schema: Schema) -> bool:
    """Whether it names a bound that is too large to be enforced."""
    bounds = (schema.get(name) for name in _BOUNDS)
    return any(isinstance(one, int | float) and abs(one) > _LARGEST for one in bounds)


def is_positive(schema: Schema) -> bool:
    """Whether no number below zero will do."""
    return any(value >= 0 for value, _ in _each(schema, "minimum", "exclusiveMinimum"))


def only_positive(schema: Schema) -> bool:
    """Whether that is all that is said of its size."""
    return stated(schema, *_BOUNDS) == ["minimum"] and schema["minimum"] == 0


def is_filled(schema: Schema) -> bool:
    """Whether a string must not be empty."""
    least = schema.get("minLength")
    return isinstance(least, int) and least > 0


def lengths_not_counted(schema: Schema) -> list[str]:
    """Counting the characters of a string costs an engine seconds: only one is asked for."""
    counted = schema.get("minLength") in (None, 0, 1)
    return [*([] if counted else ["minLength"]), *stated(schema, "maxLength")]


def _each(schema: Schema, name: str, exclusive: str) -> list[tuple[float, bool]]:
    """The bounds that a schema names, and whether each is excluded; old ones say so by a flag."""
    found: list[tuple[float, bool]] = []
    flag = schema.get(exclusive)
    for value, strict in ((schema.get(name), flag is True), (flag, True)):
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if abs(value) <= _LARGEST:
            found.append((value, strict))
    return found
