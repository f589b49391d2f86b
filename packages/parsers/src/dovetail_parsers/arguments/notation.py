"""Write JSON arguments in the notations of the families, with numbers spelled unchanged."""

import json
from typing import Any

from dovetail_parsers.arguments.json_validator import Dialect


class _NumberText(str):
    """A number as its text, so that no digit is lost."""


def load_arguments(arguments: str) -> dict[str, Any]:
    """Load the arguments as a mapping. Numbers stay text, marked as such."""
    value = json.loads(arguments, parse_int=_NumberText, parse_float=_NumberText)
    if not isinstance(value, dict):
        raise ValueError("arguments must be a JSON object")
    return value


def write_json(value: Any) -> str:
    """Write JSON with the spacing of Hugging Face's chat templates."""
    match value:
        case _NumberText():
            return str(value)
        case dict():
            pairs = (
                f"{json.dumps(k, ensure_ascii=False)}: {write_json(v)}" for k, v in value.items()
            )
            return "{" + ", ".join(pairs) + "}"
        case list():
            return "[" + ", ".join(map(write_json, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def write_raw(value: Any) -> str:
    """Write a value between tags: strings unchanged, everything else as JSON."""
    if isinstance(value, str):
        return str(value)
    return write_json(value)


def write_python(value: Any) -> str:
    match value:
        case _NumberText():
            return str(value)
        case dict():
            return (
                "{"
                + ", ".join(f"{write_python(k)}: {write_python(v)}" for k, v in value.items())
                + "}"
            )
        case list():
            return "[" + ", ".join(map(write_python, value)) + "]"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return repr(value)


def write_dialect(arguments: str, dialect: Dialect) -> str:
    """Write the arguments object in a dialect of JSON; JSON itself passes verbatim."""
    if not dialect.quote:
        return arguments
    return _delimited(load_arguments(arguments), dialect.quote)


def _delimited(value: Any, quote: str) -> str:
    match value:
        case _NumberText():
            return str(value)
        case dict():
            return "{" + ",".join(f"{k}:{_delimited(v, quote)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ",".join(_delimited(item, quote) for item in value) + "]"
        case str():
            return quote + value + quote
        case _:
            return json.dumps(value)


def loaded_type(value: Any) -> str:
    """Return the JSON type of a loaded value."""
    match value:
        case _NumberText():
            return "number"
        case bool():
            return "boolean"
        case None:
            return "null"
        case str():
            return "string"
        case dict():
            return "object"
        case _:
            return "array"
