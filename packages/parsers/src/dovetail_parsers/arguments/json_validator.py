"""An incremental JSON validator: valid text passes unchanged.

The model's text passes verbatim. Small errors are repaired forward, without taking back output: a
raw newline in a string, a comma before a closing bracket, single quotes, bare keys, Python
literals. Errors that cannot be repaired end in `failed`. The cost of a feed is bounded by its text:
the held state is one scalar, one escape or one comma.
"""

import re
from dataclasses import dataclass
from json.encoder import encode_basestring


@dataclass(frozen=True, slots=True)
class Dialect:
    """A notation that differs from JSON in its strings, keys or sequences."""

    quote: str = ""  # a delimiter of strings that are raw text without escapes
    closer: str = ""  # the marker behind the value: with all brackets before it, it ends a string
    bare_keys: bool = False
    parens: bool = False  # tuples become arrays, and a closing one ends a scalar


JSON = Dialect()
PYTHON = Dialect(parens=True)

# What may come next.
_VALUE, _FIRST_ITEM, _FIRST_KEY, _KEY, _COLON, _AFTER = range(6)

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z")
_LITERALS = {"true": "true", "false": "false", "null": "null"}
_PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}
_BARE_KEY = re.compile(r"[\w$.\-/@]+\Z")
_TOKEN = re.compile(r"([ \t\n\r]+)|([{}\[\]:,\"'])|([\w$.+\-/@]+)")
_TOKEN_PARENS = re.compile(r"([ \t\n\r]+)|([{}\[\]():,\"'])|([\w$.+\-/@]+)")
# Content of a string that passes unchanged: plain text and complete escapes.
_IN_DOUBLE, _IN_SINGLE = r'[^"\\\x00-\x1f]*', r"[^'\"\\\x00-\x1f]*"
_ESCAPE = r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
_PASSES = {
    '"': re.compile(f"{_IN_DOUBLE}(?:{_ESCAPE}{_IN_DOUBLE})*"),
    "'": re.compile(f"{_IN_SINGLE}(?:{_ESCAPE}{_IN_SINGLE})*"),
}
_PLAIN_ESCAPES = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_MAY_END = re.compile(r"[<}\]]")  # what ends a string between custom delimiters starts so
QUOTES = frozenset("\"'`\\")  # behind closers that a value quotes
_CLOSES = {"}": "{", "]": "["}
_MAX_DEPTH = 400  # nested brackets: more than any JSON parser of ours or a client accepts
_MAX_SPACE = 64  # between the brackets that end a value
_MAX_SCALAR_CHARS = 2000  # of a number, literal or bare key


def escape_json(text: str) -> str:
    """Escape a text for use inside a JSON string."""
    return encode_basestring(text)[1:-1]


class JsonValidator:
    """Reads one value. `done` when it is complete, `failed` when it cannot become valid."""

    __slots__ = (
        "_at_end",
        "_comma",
        "_dialect",
        "_escape",
        "_expect",
        "_is_key",
        "_passing",
        "_quote",
        "_scalar",
        "_stack",
        "_stalled",
        "_token",
        "done",
        "failed",
        "repairs",
    )

    def __init__(self, dialect: Dialect = JSON) -> None:
        self._dialect = dialect
        self._token = _TOKEN_PARENS if dialect.parens else _TOKEN
        self._stack: list[str] = []
        self._expect = _VALUE
        self._quote = ""  # delimiter of the current string
        self._passing: re.Pattern[str] | None = None  # content of it that passes unchanged
        self._is_key = False
        self._escape = ""  # an incomplete escape sequence
        self._scalar = ""  # an incomplete number, literal or bare key
        self._stalled = False  # a string's delimiter is truncated at the end of the text
        self._at_end = False  # no text follows
        self._comma: list[
            str
        ] = []  # a comma and white space after it, which may have to be dropped
        self.done = False
        self.failed = False
        self.repairs: list[str] = []

    def passes(self, text: str, start: int = 0) -> bool:
        """Whether the text only continues the current string and passes unchanged."""
        passing = self._passing
        return passing is not None and not self._escape and bool(passing.fullmatch(text, start))

    def feed(self, text: str, start: int = 0) -> tuple[str, int]:
        """Return valid JSON decoded from `text[start:]`, and the position up to which was read."""
        if self.passes(text, start):
            return (text[start:] if start else text), len(text)
        out: list[str] = []
        at, size = start, len(text)
        self._stalled = False
        while at < size and not (self.done or self.failed or self._stalled):
            if self._escape:
                at = self._in_escape(text, at, out)
            elif self._quote:
                at = self._in_string(text, at, out)
            else:
                at = self._outside(text, at, out)
        return "".join(out), at

    def finish(self, rest: str = "") -> str:
        """End the text: a top-level scalar is complete now. `rest` was not read so far."""
        out: list[str] = []
        if rest and self._quote and self._passing is None:
            self._at_end = True
            out.append(self.feed(rest)[0])
        if self._scalar and not (self._stack or self.done or self.failed):
            self._end_scalar(out)
        return "".join(out)

    def open_brackets(self) -> str:
        return "".join(self._stack)

    def _in_string(self, text: str, at: int, out: list[str]) -> int:
        if self._passing is None:
            return self._in_raw_string(text, at, out)
        end = self._passing.match(text, at).end()  # type: ignore[union-attr]
        if end > at:
            out.append(text[at:end])
        if end == len(text):
            return end
        char = text[end]
        if char == self._quote:
            self._end_string(out)
        elif char == "\\":
            self._escape = "\\"
        else:
            if char != '"':
                self.repairs.append("control_character_in_string")
            out.append(escape_json(char))
        return end + 1

    def _in_raw_string(self, text: str, at: int, out: list[str]) -> int:
        """Read a string between custom delimiters; a truncated delimiter waits."""
        if _MAY_END.search(text, at) is None:
            out.append(escape_json(text[at:]))
            return len(text)
        quote = text.find(self._quote, at)
        end, ends = self._find_enclosing(text, at, quote if quote >= 0 else len(text))
        if end < 0:
            end = quote if quote >= 0 else len(text) - overlap_length(text, self._quote, at)
            ends = quote >= 0
        out.append(escape_json(text[at:end]))
        if not ends:
            self._stalled = True
            return end
        self._end_string(out)
        if end == quote:
            return end + len(self._dialect.quote)
        self.repairs.append("missing_value_end")
        return end

    def _find_enclosing(self, text: str, at: int, stop: int) -> tuple[int, bool]:
        """Find the brackets and the closer of everything that contains an unclosed string.

        The flag is False if more text must decide. A quoted closer does not count.
        """
        closer = self._dialect.closer
        if not closer:
            return -1, False
        found = text.find(closer, at, stop)
        while found >= 0:
            start = self._enclosing_start(text, at, found)
            behind = found + len(closer)
            if start >= 0 and behind == len(text) and not self._at_end:
                return start, False
            if start >= 0 and text[behind : behind + 1] not in QUOTES:
                return start, True
            found = text.find(closer, behind, stop)
        last = text.rfind("}", at) if stop == len(text) and not self._at_end else -1
        if last >= 0 and closer.startswith(text[last + 1 : last + _MAX_SPACE].lstrip()):
            return self._enclosing_start(text, at, last + 1), False
        return -1, False

    def _enclosing_start(self, text: str, at: int, end: int) -> int:
        """Return where the brackets that close the whole value start before `end`, or -1."""
        for bracket in self._stack:
            end = len(text[max(at, end - _MAX_SPACE) : end].rstrip()) + max(at, end - _MAX_SPACE)
            if end <= at or _CLOSES.get(text[end - 1]) != bracket:
                return -1
            end -= 1
        return end

    def _in_escape(self, text: str, at: int, out: list[str]) -> int:
        char = text[at]
        seen = self._escape + char
        kind = seen[1]
        if len(seen) == 2 and kind not in "ux":
            self._escape = ""
            if kind in _PLAIN_ESCAPES:
                out.append(seen)
            elif kind == "'":
                out.append("'")
                if self._quote == '"':
                    self.repairs.append("invalid_escape")
            else:
                out.append("\\\\" + escape_json(char))
                self.repairs.append("invalid_escape")
            return at + 1
        if len(seen) > 2 and char not in _HEX:
            self._escape = ""
            out.append("\\" + seen[:-1])
            self.repairs.append("invalid_escape")
            return at
        self._escape = seen
        if len(seen) == (6 if kind == "u" else 4):
            self._escape = ""
            out.append(seen if kind == "u" else "\\u00" + seen[2:])
            if kind == "x":
                self.repairs.append("invalid_escape")
        return at + 1

    def _end_string(self, out: list[str]) -> None:
        self._quote, self._passing = "", None
        out.append('"')
        if self._is_key:
            self._expect = _COLON
        else:
            self._end_value()

    def _end_value(self) -> None:
        if self._stack:
            self._expect = _AFTER
        else:
            self.done = True

    def _outside(self, text: str, at: int, out: list[str]) -> int:
        quote = self._dialect.quote
        if quote and text[at] == quote[0]:
            if self._scalar and (not self._end_scalar(out) or self.done):
                return at
            return self._open_raw(text, at, out)
        found = self._token.match(text, at)
        if found is None:
            self.failed = True
            return at
        token, kind = found.group(), found.lastindex
        if kind == 3:
            if not self._scalar and self._expect in (_COLON, _AFTER):
                self.failed = True
                return at
            self._scalar += token[: _MAX_SCALAR_CHARS - len(self._scalar)]
            if len(self._scalar) == _MAX_SCALAR_CHARS:
                self.failed = True
            return min(found.end(), at + _MAX_SCALAR_CHARS)
        if self._scalar and (not self._end_scalar(out) or self.done):
            return at
        if kind == 1:
            self._whitespace(token, out)
        else:
            self._punctuation(token, out)
            if self.failed:
                return at
        return found.end()

    def _whitespace(self, token: str, out: list[str]) -> None:
        if self._comma:
            self._comma.append(token)
        elif self._stack:
            out.append(token)

    def _open_raw(self, text: str, at: int, out: list[str]) -> int:
        """Read a string's opening delimiter; a truncated one waits for its rest."""
        quote = self._dialect.quote
        part = text[at : at + len(quote)]
        if self._expect in (_COLON, _AFTER) or not quote.startswith(part):
            self.failed = True
        elif part == quote:
            self._open_string(quote, out)
            return at + len(quote)
        else:
            self._stalled = True
        return at

    def _end_scalar(self, out: list[str]) -> bool:
        """Emit the held scalar, repaired if necessary. Return False if it is invalid."""
        scalar, self._scalar = self._scalar, ""
        if self._expect in (_KEY, _FIRST_KEY):
            if not _BARE_KEY.match(scalar):
                self.failed = True
                return False
            if not self._dialect.bare_keys:
                self.repairs.append("bare_key")
            self._take_comma(out)
            out.append('"' + scalar + '"')
            self._expect = _COLON
            return True
        value = self._scalar_value(scalar)
        if value is None:
            self.failed = True
            return False
        self._take_comma(out)
        out.append(value)
        self._end_value()
        return True

    def _take_comma(self, out: list[str]) -> None:
        """Emit the held comma, since a value follows it."""
        if self._comma:
            out.extend(self._comma)
            self._comma.clear()

    def _scalar_value(self, scalar: str) -> str | None:
        if NUMBER.match(scalar):
            return scalar
        if scalar in _LITERALS:
            return scalar
        if scalar in _PYTHON_LITERALS:
            if not self._dialect.parens:
                self.repairs.append("python_literal")
            return _PYTHON_LITERALS[scalar]
        if self._dialect.quote:
            self.repairs.append("bare_string")
            return encode_basestring(scalar)
        return None

    def _punctuation(self, token: str, out: list[str]) -> None:
        expect = self._expect
        if token in "\"'":
            if expect in (_COLON, _AFTER):
                self.failed = True
            else:
                self._open_string(token, out)
        elif token in "{[(":
            self._open(token, out)
        elif token in "}])":
            self._close(token, out)
        elif token == ":" and expect == _COLON:
            out.append(":")
            self._expect = _VALUE
        elif token == "," and expect == _AFTER:
            self._comma.append(",")
            self._expect = _KEY if self._stack[-1] == "{" else _VALUE
        else:
            self.failed = True

    def _open_string(self, quote: str, out: list[str]) -> None:
        self._is_key = self._expect in (_KEY, _FIRST_KEY)
        self._quote = quote
        self._passing = None if quote == self._dialect.quote else _PASSES[quote]
        if quote == "'" and not self._dialect.parens:
            self.repairs.append("single_quotes")
        self._take_comma(out)
        out.append('"')

    def _open(self, token: str, out: list[str]) -> None:
        if self._expect not in (_VALUE, _FIRST_ITEM) or len(self._stack) == _MAX_DEPTH:
            self.failed = True
            return
        bracket = "[" if token == "(" else token
        self._take_comma(out)
        out.append(bracket)
        self._stack.append(bracket)
        self._expect = _FIRST_KEY if bracket == "{" else _FIRST_ITEM

    def _close(self, token: str, out: list[str]) -> None:
        bracket = "]" if token == ")" else token
        may_end = self._expect in (_AFTER, _FIRST_ITEM, _FIRST_KEY) or bool(self._comma)
        if not self._stack or self._stack[-1] != _CLOSES[bracket] or not may_end:
            self.failed = True
            return
        if self._comma:
            out.extend(self._comma[1:])
            self._comma.clear()
            self.repairs.append("trailing_comma")
        self._stack.pop()
        out.append(bracket)
        self._end_value()


def overlap_length(text: str, marker: str, start: int = 0) -> int:
    """Return how many characters at the end of `text[start:]` are a prefix of `marker`."""
    at = text.find(marker[0], max(start, len(text) - len(marker) + 1))
    while at >= 0:
        if marker.startswith(text[at:]):
            return len(text) - at
        at = text.find(marker[0], at + 1)
    return 0
