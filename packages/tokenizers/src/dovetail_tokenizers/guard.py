"""Prevent the text of messages from becoming control tokens.

A chat template writes control tokens and message text into one string. Afterwards a `<|im_end|>`
of the template looks the same as one that a user typed or a tool returned. So each message text is
protected before rendering: a nonce is put into every control token's spelling in it. What is still
unbroken in the rendered prompt is the template's own.
"""

import secrets
import string
from array import array
from collections.abc import Sequence
from itertools import islice

from dovetail_tokenizers.control import ControlTable
from dovetail_tokenizers.literals import first_character_pattern, longest_literal_pattern
from dovetail_tokenizers.long_text_cache import MIN_LONG_CHARS
from dovetail_tokenizers.tokenizer import Segment, Tokenizer

NONCE_LENGTH = 20
_QUICK_CHECK_TOKENS = 64  # ids that are looked at first
_MAX_OPENING_CONTROLS = 4  # control tokens up to the end of a prompt's first long text
_REPLACEMENT_CHARACTER = "\ufffd"  # stands for bytes that are no character, or not yet


class ControlTokenGuard:
    """Break the control tokens' spellings in message texts, and restore them."""

    __slots__ = ("_breakable", "_nonce", "_table", "_tokenizer", "_unbroken")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._table = table = ControlTable.from_mapping(tokenizer.controls)
        self._nonce = _make_nonce(table)
        self._breakable = first_character_pattern(table)
        # A spelling of one character cannot be broken: there the nonce behind it is the mark.
        self._unbroken = longest_literal_pattern(
            table.competing_spellings(), lone=f"(?!{self._nonce})"
        )

    def protect(self, text: str) -> str:
        """Message text in which no control token's spelling stands, nor can come to stand."""
        if self._breakable.search(text):
            text = self._breakable.sub(rf"\g<0>{self._nonce}", text)
        # The next text could complete a spelling that begins at the end of this one.
        table = self._table
        for size in range(1, min(table.max_chars, len(text) + 1)):
            if text[-size:] in table.partial_spellings:
                return text + self._nonce
        return text

    def reveal(self, text: str) -> str:
        """The text as it was before `protect`."""
        return text.replace(self._nonce, "")

    def segments(self, rendered: str) -> list[Segment]:
        """The control tokens that the template wrote, and the plain texts between them.

        Joined, the segments are the rendered prompt without nonces.
        """
        parts: list[Segment] = []
        done = 0
        for found in self._table.find(rendered, self._unbroken):
            self._add_plain(parts, rendered[done : found.start])
            parts.append(Segment(found.spelling, True))
            done = found.end
        self._add_plain(parts, rendered[done:])
        return parts

    def encode(self, rendered: str, *, first: bool = True) -> list[int]:
        """Ids of a rendered prompt whose message texts were protected."""
        return self.pack(rendered, first=first).tolist()

    def pack(self, rendered: str, *, first: bool = True) -> "array[int]":
        """The same, packed."""
        ids = array("I")
        for text, control in self._table.split(rendered, self._unbroken):
            if control is not None:
                ids.append(control)
            elif plain := self.reveal(text):
                ids += self._tokenizer.pack_plain(plain, first=first)
            first = False
        return ids

    def match_length(self, ids: Sequence[int], rendered: str, *, first: bool = True) -> int | None:
        """How many characters of a rendered prompt these ids are; None if it begins otherwise.

        Equal text is not enough: a control token of the one must be that token in the other.
        """
        if not rendered.startswith(
            self._tokenizer.decode(ids[:_QUICK_CHECK_TOKENS]).rstrip(_REPLACEMENT_CHARACTER)
        ):
            return None  # most that differ do so early, and the rest need not be decoded
        ids = array("I", ids)
        same, done = self._match_opening(ids, rendered, first)
        length = self._match_decoded(ids[same:], rendered[done:])
        return None if length is None else done + length

    def _match_opening(self, ids: "array[int]", rendered: str, first: bool) -> tuple[int, int]:
        """How many ids and characters are the same up to the end of the first long text.

        That is the system's, as a rule: it is remembered, and need not be decoded.
        """
        done = 0
        for found in islice(self._table.find(rendered, self._unbroken), _MAX_OPENING_CONTROLS):
            if found.start - done >= MIN_LONG_CHARS:
                opening = rendered[: found.end]
                made = self.pack(opening, first=first)
                same = ids[: len(made)] == made and self._nonce not in opening
                return (len(made), found.end) if same else (0, 0)
            done = found.end
        return 0, 0

    def _match_decoded(self, ids: "array[int]", rendered: str) -> int | None:
        decoded = self._tokenizer.decode(ids)
        if not rendered.startswith(decoded):
            return None
        written = [id for _, id in self._table.split(decoded, self._unbroken) if id is not None]
        given = [id for id in ids if self._tokenizer.is_control(id)]
        return len(decoded) if written == given else None

    def _add_plain(self, parts: list[Segment], text: str) -> None:
        if plain := self.reveal(text):
            parts.append(Segment(plain, False))


def _make_nonce(table: ControlTable) -> str:
    """Letters and digits, which every template lets through; none that begins a control token."""
    taken = {spelling[0] for spelling in table}
    alphabet = [c for c in string.ascii_letters + string.digits if c not in taken]
    return "".join(secrets.choice(alphabet) for _ in range(NONCE_LENGTH))
