"""The control tokens of a tokenizer and the search for them in a text."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from dovetail_tokenizers.literals import longest_literal_pattern, proper_prefixes

# White space as defined by Unicode. `str.isspace` also includes four ASCII separators.
WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
WHITESPACE_RUN = re.compile(f"[{WHITESPACE}]*")


@dataclass(frozen=True, slots=True)
class AddedTokenFlags:
    """Matching rules of an added token: strip white space, or match only between words."""

    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


DEFAULT_FLAGS = AddedTokenFlags()


@dataclass(frozen=True, slots=True)
class ControlMatch:
    """An occurrence of a control token's spelling in a text."""

    start: int
    end: int
    spelling: str


class ControlTable(Mapping[str, int]):
    """Control tokens by spelling, and the pattern that finds them in a text."""

    __slots__ = (
        "_competitors",
        "_flags",
        "_ids",
        "_spellings",
        "max_chars",
        "partial_spellings",
        "pattern",
    )

    def __init__(
        self,
        ids: Mapping[str, int],
        flags: Mapping[str, AddedTokenFlags] | None = None,
        plain_tokens: Iterable[str] = (),
    ) -> None:
        """`plain_tokens` are the other added tokens; on overlap the first, longest match wins."""
        self._ids = {spelling: id for spelling, id in ids.items() if spelling}
        self._flags = {
            s: e for s, e in (flags or {}).items() if s in self._ids and e != DEFAULT_FLAGS
        }
        self._spellings = {id: spelling for spelling, id in self._ids.items()}
        self._competitors = frozenset(_find_competitors(plain_tokens, self._ids))
        self.pattern = longest_literal_pattern(self.competing_spellings())
        # Every proper prefix of a spelling, that is, what later text could complete.
        self.partial_spellings = proper_prefixes(self.competing_spellings())
        self.max_chars = max(map(len, self.competing_spellings()), default=0)

    @classmethod
    def from_mapping(cls, controls: Mapping[str, int]) -> Self:
        """Return a table unchanged, or build one from a plain mapping."""
        return controls if isinstance(controls, cls) else cls(controls)

    def __getitem__(self, spelling: str) -> int:
        return self._ids[spelling]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def competing_spellings(self) -> list[str]:
        """Return the spellings, and those of plain tokens that compete for the same text."""
        return [*self._ids, *self._competitors]

    def spelling(self, id: int) -> str | None:
        """Return the spelling of the control token with this id, or None."""
        return self._spellings.get(id)

    def has_id(self, id: int) -> bool:
        """Return whether the id belongs to a control token."""
        return id in self._spellings

    def find(self, text: str, pattern: re.Pattern[str] | None = None) -> Iterator[ControlMatch]:
        """Yield the control tokens in a text from left to right, preferring the longest match."""
        for match in (pattern or self.pattern).finditer(text):
            spelling = match.group()
            if spelling in self._competitors:
                continue
            if not self._flags or self._is_isolated(spelling, text, match):
                yield ControlMatch(match.start(), match.end(), spelling)

    def find_last(self, text: str, spelling: str) -> int:
        """Return the position of the last control token, whose spelling is given; -1 if absent."""
        if not self._competitors and not self._flags.get(spelling, DEFAULT_FLAGS).single_word:
            return text.rfind(spelling)
        last = -1
        for found in self.find(text):
            last = found.start
        return last

    def split(
        self, text: str, pattern: re.Pattern[str] | None = None
    ) -> Iterator[tuple[str, int | None]]:
        """Yield plain texts (without id) and control tokens in order; omit stripped white space."""
        done = 0
        for found in self.find(text, pattern):
            flags = self._flags.get(found.spelling, DEFAULT_FLAGS)
            plain = text[done : found.start]
            if flags.lstrip:
                plain = plain.rstrip(WHITESPACE)
            if plain:
                yield plain, None
            yield found.spelling, self._ids[found.spelling]
            done = max(done, found.end)
            if flags.rstrip:
                done = _skip_whitespace(text, done)
        if done < len(text):
            yield text[done:], None

    def _is_isolated(self, spelling: str, text: str, match: re.Match[str]) -> bool:
        if not self._flags.get(spelling, DEFAULT_FLAGS).single_word:
            return True
        start, end = match.span()
        return not (
            _is_word_character(text[max(start - 1, 0) : start])
            or _is_word_character(text[end : end + 1])
        )


def is_blank(spelling: str) -> bool:
    """Return whether an added token is only white space, which text may contain anywhere."""
    return not spelling.strip(WHITESPACE + "▁")


def _find_competitors(plain_tokens: Iterable[str], controls: Mapping[str, int]) -> Iterator[str]:
    """Yield the tokens that contain a control token's spelling, or end with a prefix of one."""
    whole = longest_literal_pattern(controls)
    partial = proper_prefixes(controls)
    for token in plain_tokens:
        if token in controls:
            continue
        if whole.search(token) or any(token[at:] in partial for at in range(1, len(token))):
            yield token


def _skip_whitespace(text: str, start: int) -> int:
    run = WHITESPACE_RUN.match(text, start)
    return run.end() if run else start


def _is_word_character(character: str) -> bool:
    if not character:
        return False
    kind = unicodedata.category(character)
    return character.isalnum() or kind[0] == "M" or kind in {"Pc", "Nl"}
