"""Shorten the results of server tools to the room that the context window leaves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

OMITTED_TEXT = "\n[the rest is omitted]"
_RESERVED_TOKENS = 512  # for markup and the next output, at most a quarter of the window
_MIN_RESULT_TOKENS = 32  # a shorter text helps no model
_BYTES_PER_TOKEN = 2  # where tokens cannot be counted: fewer bytes than tokens have on average

CountTokens = Callable[[str], int]


def estimate_tokens(text: str) -> int:
    """Return a number of tokens that a text rarely exceeds."""
    return len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN + 1


@dataclass(frozen=True)
class ContextWindow:
    """The context window of a model, and how its tokens are counted."""

    tokens: int
    count: CountTokens = estimate_tokens

    def room_after(self, used: int, results: int) -> "ResultRoom":
        """Return the room for each of several results behind a prompt and its output."""
        reserved = min(_RESERVED_TOKENS, self.tokens // 4)
        return ResultRoom(max(0, self.tokens - used - reserved) // max(1, results), self.count)


@dataclass(frozen=True)
class ResultRoom:
    """The maximum number of tokens of one result."""

    tokens: int
    count: CountTokens = estimate_tokens

    def fit_parts(self, parts: Sequence[str]) -> list[str]:
        """Return the parts that fit. The last of them may be shortened."""
        if sum(len(part.encode("utf-8", "replace")) for part in parts) <= self.tokens:
            return list(parts)
        left = self.tokens
        fitting_parts: list[str] = []
        for part in parts:
            fitting = self.fit(part, left)
            if fitting is None:
                break
            fitting_parts.append(fitting)
            if fitting is not part:
                break
            left -= self.count(part)
        return fitting_parts

    def fit(self, text: str, tokens: int | None = None) -> str | None:
        """Return the text, shortened if necessary, or None if too little of it would be left."""
        limit = self.tokens if tokens is None else tokens
        size = self._measure(text, limit)
        if size <= limit:
            return text
        if limit < _MIN_RESULT_TOKENS:
            return None
        shortened, length = text, len(text)
        while size > limit:
            length = length * limit // size - len(OMITTED_TEXT)
            if length <= 0:
                return None
            shortened = text[:length] + OMITTED_TEXT
            size = self._measure(shortened, limit)
        return shortened

    def _measure(self, text: str, limit: int) -> int:
        """Count the tokens of a text. One that certainly fits is not tokenized."""
        size = len(text.encode("utf-8", "replace"))
        return size if size <= limit else self.count(text)
