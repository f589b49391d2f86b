"""Decode the content of a JSON string incrementally. Reads only validated JSON."""

import re

_PLAIN = re.compile(r'[^"\\]*')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class JsonStringDecoder:
    """Feed it what follows the opening quote; `done` once the closing quote was read."""

    __slots__ = ("_escape", "_high", "done")

    def __init__(self) -> None:
        self._escape = ""
        self._high = ""  # the first half of a surrogate pair
        self.done = False

    def feed(self, text: str, start: int = 0) -> tuple[str, int]:
        """Return the decoded text, and the position up to which was read."""
        out: list[str] = []
        at, size = start, len(text)
        while at < size and not self.done:
            if self._escape:
                self._escape += text[at]
                at += 1
                out.append(self._unescape())
                continue
            end = _PLAIN.match(text, at).end()  # type: ignore[union-attr]
            if end > at:
                out.append(self._take_high() + text[at:end])
            at = end
            if at < size:
                if text[at] == "\\":
                    self._escape = "\\"
                else:
                    out.append(self._take_high())
                    self.done = True
                at += 1
        return "".join(out), at

    def _unescape(self) -> str:
        seen = self._escape
        if seen[1] != "u":
            self._escape = ""
            return self._take_high() + _ESCAPES[seen[1]]
        if len(seen) < 6:
            return ""
        self._escape = ""
        unit = chr(int(seen[2:], 16))
        if self._high and "\udc00" <= unit <= "\udfff":
            pair, self._high = self._high + unit, ""
            return pair.encode("utf-16", "surrogatepass").decode("utf-16")
        before = self._take_high()
        if "\ud800" <= unit <= "\udbff":
            self._high = unit
            return before
        return before + _replace_surrogate(unit)

    def _take_high(self) -> str:
        high, self._high = self._high, ""
        return _replace_surrogate(high) if high else ""


def _replace_surrogate(unit: str) -> str:
    """Replace a lone surrogate, which is not a character and must not reach an encoder."""
    return "\ufffd" if "\ud800" <= unit <= "\udfff" else unit
