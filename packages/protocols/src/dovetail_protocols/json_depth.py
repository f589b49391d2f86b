"""Limit the nesting of JSON values in requests.

Templates, grammars and encoders process values recursively, several Python frames per level. The
decoder itself stops only where all of these fail: close to the interpreter's recursion limit, and
later as of Python 3.12, which counts the levels of C functions separately.
"""

import re
from collections.abc import Iterable
from typing import Any

from dovetail_model import InvalidRequest

MAX_JSON_DEPTH = 128

_MAX_KEY_CHARS = 64  # of each key in the path of an error
_MAX_NAMED_KEYS = 2  # keys in the path of an error: `tools[0].function.parameters`

_STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)  # may be unterminated
_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))


def check_depth(value: Any, path: str) -> None:
    """Raise `InvalidRequest` if a value is nested too deeply. The error names the field."""
    if _is_deeper(value, MAX_JSON_DEPTH):
        where = _deep_field(value, path)
        message = f"{where}: must not be nested more than {MAX_JSON_DEPTH} levels deep"
        raise InvalidRequest(message, param=where)


def exceeds_depth(text: bytes, levels: int) -> bool:
    """Return whether JSON text is nested more deeply, without decoding it. It may be malformed."""
    if text.count(b"[") + text.count(b"{") <= levels:
        return False
    brackets = _STRING.sub(b"", text).translate(_TO_SQUARE, _NOT_BRACKETS)
    deep = b"[" * (levels + 1)
    for _ in range(levels):
        shorter = brackets.replace(b"[]", b"")  # without the innermost level
        if deep in brackets or len(shorter) == len(brackets):
            break
        brackets = shorter
    else:
        return b"[]" in brackets or deep in brackets
    return deep in brackets


def _is_deeper(value: Any, depth: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        if not level:
            return False
        level = [
            child for one in level for child in _children(one) if isinstance(child, dict | list)
        ]
    return bool(level)


def _children(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _deep_field(value: Any, path: str) -> str:
    """Return the path of the deepest field, up to the first array and a few keys."""
    for depth in range(MAX_JSON_DEPTH - 1, MAX_JSON_DEPTH - 1 - _MAX_NAMED_KEYS, -1):
        if not isinstance(value, dict):
            break
        key = next(key for key, child in value.items() if _is_deeper(child, depth))
        value = value[key]
        path = f"{path}.{key[:_MAX_KEY_CHARS]}"
    return path
