"""Custom tools: the model sees a function with one string; the client receives that string.

Reads the JSON arguments that another decoder produced, `{"input": "..."}`, and returns the free
text inside. Arguments of another form pass unchanged.
"""

import re

from dovetail_parsers.arguments.json_string import JsonStringDecoder

_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_MAY_BE_HEAD = re.compile(r'\s*(?:\{\s*(?:"(?:i(?:n(?:p(?:u(?:t(?:"\s*(?::\s*)?)?)?)?)?)?)?)?)?\Z')

_MAX_HEAD_CHARS = 256


class FreeformDecoder:
    """Converts JSON arguments to free text."""

    __slots__ = ("_head", "_string", "_verbatim")

    def __init__(self) -> None:
        self._head = ""
        self._string: JsonStringDecoder | None = None
        self._verbatim = False

    def pass_through(self) -> None:
        """Return all text unchanged from now on."""
        self._verbatim = True

    def feed(self, text: str) -> str:
        if self._verbatim:
            return text
        if self._string is not None:
            return self._string.feed(text)[0]
        self._head += text
        found = _HEAD.match(self._head)
        if found:
            self._string = JsonStringDecoder()
            return self._string.feed(self._head, found.end())[0]
        if len(self._head) < _MAX_HEAD_CHARS and _MAY_BE_HEAD.match(self._head):
            return ""
        self._verbatim = True
        return self._head

    def finish(self) -> str:
        """Return the rest when the call closes: arguments that never had the expected form."""
        if self._verbatim or self._string is not None or self._head.strip() in ("", "{}"):
            return ""
        return self._head
