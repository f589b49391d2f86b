"""Reading a request body: lenient about what is unknown, exact about where a fault is."""

import json
import re
from typing import Any, TypeVar

import msgspec

from dovetail_model import InvalidRequest

T = TypeVar("T")

_decode = msgspec.json.decode
_AT = re.compile(r"^(.*?)(?: - at `(.*)`)?$", re.DOTALL)


def load(body: bytes) -> dict[str, Any]:
    """The body as a JSON object.

    Clients in JavaScript cut strings in the middle of an emoji and send the half that is left as
    an escape, which no strict reader takes. It stays in the history for good: refused once, the
    session would be lost. So it is mended.
    """
    try:
        value = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        try:
            value = _decode(
                json.dumps(json.loads(body), ensure_ascii=False).encode("utf-8", "replace")
            )
        except (ValueError, RecursionError):
            raise InvalidRequest(f"The request body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    return value


def convert(value: object, kind: type[T], path: str = "") -> T:
    """The value as a wire type. A fault names the field by its path, as `messages[3].content`."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        found = _AT.match(str(error))
        reason, inner = (found[1], found[2] or "") if found else (str(error), "")
        where = path + inner.removeprefix("$")
        where = where.removeprefix(".")
        text = f"{where}: {reason}" if where else reason
        raise InvalidRequest(text, param=where or None) from error


def unknown(value: dict[str, Any], kind: type[msgspec.Struct], path: str = "") -> tuple[str, ...]:
    """The paths of fields that the wire type does not know."""
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    return tuple(f"{path}{name}" for name in value if name not in known)
