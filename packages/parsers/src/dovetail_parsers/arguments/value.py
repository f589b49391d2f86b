"""Convert a raw value between tags to a JSON value, typed by what its schema allows.

A string streams from its first character. A number, boolean or null is short and waits for its end.
If a schema allows both, the text waits only while it could still be either. Objects and arrays
stream through the validator if nothing else is allowed.
"""

import re

from dovetail_parsers.arguments.json_validator import NUMBER, JsonValidator, escape_json

_MAY_BE_NUMBER = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?)?\Z")
_NAMED = {
    "true": "boolean",
    "false": "boolean",
    "True": "boolean",
    "False": "boolean",
    "null": "null",
    "None": "null",
}
_MAY_BE_NAMED = frozenset(name[:i] for name in _NAMED for i in range(len(name) + 1))
_AS_JSON = {"True": "true", "False": "false", "None": "null"}
_CONTAINERS = {"{": "object", "[": "array"}
#: Text behind closers that may be data of a value whose own closer follows.
MAX_HELD_CHARS = 16_384
_MAX_NUMBER_CHARS = 128  # longer than any number: decide at the end


class RawValueDecoder:
    """Feed it raw text, then end it; it returns one JSON value in fragments."""

    __slots__ = ("_held", "_json", "_types", "_waits", "diagnostics", "failed", "is_string")

    def __init__(self, types: frozenset[str]) -> None:
        self._types = types
        self._held: list[str] = []
        self._waits = False  # undecided until the end
        self.is_string = False  # decided, and its opening quote was emitted
        self._json: JsonValidator | None = None
        self.failed = False
        self.diagnostics: list[str] = []

    def feed(self, text: str) -> str:
        if self.is_string:
            return escape_json(text)
        if self._json is not None:
            return "" if self.failed else self._feed_json(text)
        if len(self._types) == 1 and "string" in self._types:
            self.is_string = True
            return '"' + escape_json(text)
        self._held.append(text)
        return "" if self._waits else self._decide("".join(self._held))

    def end(self) -> str:
        """Return the rest of the value after its closing delimiter."""
        if self.is_string:
            return '"'
        if self._json is not None:
            return self._end_json()
        text = "".join(self._held)
        literal = self._literal(text.strip())
        if literal is not None:
            return literal
        if "string" not in self._types:
            self.diagnostics.append("type_mismatch")
        return '"' + escape_json(text) + '"'

    def _decide(self, text: str) -> str:
        """Stream now if the text can only have one type, else keep holding it."""
        body = text.lstrip()
        kind = _CONTAINERS.get(body[:1])
        may_be_string = "string" in self._types
        if kind in self._types and not may_be_string:
            self._json = JsonValidator()
            return self._feed_json(body)
        if kind in self._types or ((kind or body[:1] == '"') and not may_be_string):
            self._waits = True
            return ""
        if not body or self._may_be_scalar(body.rstrip()):
            self._held = [text]
            self._waits = len(text) > _MAX_NUMBER_CHARS
            return ""
        if not may_be_string:
            self.diagnostics.append("type_mismatch")
        self.is_string = True
        return '"' + escape_json(text)

    def _may_be_scalar(self, text: str) -> bool:
        if "string" not in self._types:
            return bool(_MAY_BE_NUMBER.match(text)) or text in _MAY_BE_NAMED
        if _MAY_BE_NUMBER.match(text) and self._types & {"number", "integer"}:
            return True
        return text in _MAY_BE_NAMED and bool(self._types & {"boolean", "null"})

    def _literal(self, text: str) -> str | None:
        """Return the text as a JSON literal in the model's spelling; None if it is not one.

        If a string is allowed, only literals of the other allowed types count; if not, any literal
        is closer to what the model meant than a string.
        """
        kind, literal = _read_literal(text)
        if kind == "string" and kind in self._types:
            return None
        if kind in self._types or (kind == "integer" and "number" in self._types):
            return literal
        if "string" in self._types or literal is None:
            return None
        self.diagnostics.append("type_mismatch")
        return literal

    def _feed_json(self, text: str) -> str:
        assert self._json is not None
        out, read = self._json.feed(text)
        self._check(text[read:])
        return out

    def _end_json(self) -> str:
        assert self._json is not None
        out = self._json.finish()
        if not self._json.done:
            self.failed = True
        self._check("")
        return out

    def _check(self, rest: str) -> None:
        assert self._json is not None
        if self._json.failed or rest.strip():
            self.failed = True
        if self._json.repairs:
            self.diagnostics.extend(self._json.repairs)
            self._json.repairs.clear()


def _read_literal(text: str) -> tuple[str, str | None]:
    """Return the JSON type of a literal and its JSON spelling; None if it is not a literal."""
    if NUMBER.match(text):
        return ("integer" if text.lstrip("-").isdigit() else "number"), text
    if text in _NAMED:
        return _NAMED[text], _AS_JSON.get(text, text)
    if text[:1] in ("{", "[", '"'):
        whole = JsonValidator()
        out, read = whole.feed(text)
        if whole.done and read == len(text):
            return _CONTAINERS.get(text[0], "string"), out
    return "string", None
