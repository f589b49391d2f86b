"""A raw value between tags becomes a JSON value, typed by what its schema allows.

A string streams from its first character. A number, boolean or null is short and waits for its
end. Where a schema allows both, the text waits only while it could still be the other. Objects
and arrays stream through the validator when nothing but them is allowed.
"""

import re

from dovetail_parsers.arguments.json_text import NUMBER, JsonText, escape

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
_LONG = 128  # no number is longer: stop asking, and decide at the end


class Value:
    """Feed it raw text, then end it; what comes out is one JSON value in fragments."""

    __slots__ = ("_held", "_json", "_string", "_types", "_waits", "diagnostics", "failed")

    def __init__(self, types: frozenset[str]) -> None:
        self._types = types
        self._held: list[str] = []
        self._waits = False  # only the end can tell what it is
        self._string = False
        self._json: JsonText | None = None
        self.failed = False
        self.diagnostics: list[str] = []

    def feed(self, text: str) -> str:
        if self._string:
            return escape(text)
        if self._json is not None:
            return "" if self.failed else self._feed_json(text)
        if len(self._types) == 1 and "string" in self._types:
            self._string = True
            return '"' + escape(text)
        self._held.append(text)
        return "" if self._waits else self._decide("".join(self._held))

    def end(self) -> str:
        """The value is closed by its delimiter: what remains of it."""
        if self._string:
            return '"'
        if self._json is not None:
            return self._end_json()
        text = "".join(self._held)
        literal = self._literal(text.strip())
        if literal is not None:
            return literal
        if "string" not in self._types:
            self.diagnostics.append("type_mismatch")
        return '"' + escape(text) + '"'

    def _decide(self, text: str) -> str:
        """Stream now if the text can only be one thing, else keep holding it."""
        body = text.lstrip()
        if not body:
            return ""
        kind = _CONTAINERS.get(body[0])
        if kind in self._types:
            if "string" in self._types:
                self._waits = True
                return ""
            self._json = JsonText()
            return self._feed_json(body)
        if self._may_be_scalar(body.rstrip()):
            self._held = [text]
            self._waits = len(text) > _LONG
            return ""
        if "string" not in self._types:
            self.diagnostics.append("type_mismatch")
        self._string = True
        return '"' + escape(text)

    def _may_be_scalar(self, text: str) -> bool:
        if _MAY_BE_NUMBER.match(text) and self._types & {"number", "integer"}:
            return True
        return text in _MAY_BE_NAMED and bool(self._types & {"boolean", "null"})

    def _literal(self, text: str) -> str | None:
        """The text as a JSON literal that the types allow, spelled as the model spelled it."""
        if NUMBER.match(text):
            integral = text.lstrip("-").isdigit()
            if "number" in self._types or ("integer" in self._types and integral):
                return text
            if "integer" in self._types and "string" not in self._types:
                self.diagnostics.append("type_mismatch")
                return text
            return None
        if _NAMED.get(text) in self._types:
            return _AS_JSON.get(text, text)
        if text and _CONTAINERS.get(text[0]) in self._types:
            whole = JsonText()
            out, read = whole.feed(text)
            return out if whole.done and read == len(text) else None
        return None

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
