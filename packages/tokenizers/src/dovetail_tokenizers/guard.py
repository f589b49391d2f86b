"""Prevent the text of messages from becoming control tokens.

A chat template writes control tokens and message text into one string. In that string, a
`<|im_end|>` of the template looks the same as one that a user typed or a tool returned. Therefore
each message text is protected before rendering: a nonce is inserted into every spelling of a
control token. The spellings that are intact in the rendered prompt come from the template.
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
_QUICK_CHECK_TOKENS = 64  # ids that are compared first
_MAX_OPENING_CONTROLS = 4  # control tokens up to the end of a prompt's first long text
_REPLACEMENT_CHARACTER = "\ufffd"  # replaces invalid or incomplete UTF-8


class ControlTokenGuard:
    """Insert nonces into the spellings of control tokens in message texts, and remove them."""

    __slots__ = ("_breakable", "_nonce", "_table", "_tokenizer", "_unbroken")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._table = table = ControlTable.from_mapping(tokenizer.controls)
        self._nonce = _make_nonce(table)
        self._breakable = first_character_pattern(table)
        # A spelling of one character cannot be split: there the nonce after it marks it as text.
        self._unbroken = longest_literal_pattern(
            table.competing_spellings(), lone=f"(?!{self._nonce})"
        )

    def protect(self, text: str) -> str:
        """Return the text with every complete or possible spelling of a control token broken."""
        if self._breakable.search(text):
            text = self._breakable.sub(rf"\g<0>{self._nonce}", text)
        # The next text could complete a spelling that starts at the end of this one.
        table = self._table
        for size in range(1, min(table.max_chars, len(text) + 1)):
            if text[-size:] in table.partial_spellings:
                return text + self._nonce
        return text

    def reveal(self, text: str) -> str:
        """Undo `protect`."""
        return text.replace(self._nonce, "")

    def segments(self, rendered: str) -> list[Segment]:
        """Split a rendered prompt into the template's control tokens and the plain texts between.

        The joined segments are the rendered prompt without nonces.
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
        """Encode a rendered prompt whose message texts were protected."""
        return self.pack(rendered, first=first).tolist()

    def pack(self, rendered: str, *, first: bool = True) -> "array[int]":
        """Like `encode`, packed into an array."""
        ids = array("I")
        for text, control in self._table.split(rendered, self._unbroken):
            if control is not None:
                ids.append(control)
            elif plain := self.reveal(text):
                ids += self._tokenizer.pack_plain(plain, first=first)
            first = False
        return ids

    def match_length(self, ids: Sequence[int], rendered: str, *, first: bool = True) -> int | None:
        """Return how many characters of a rendered prompt the ids cover; None if they differ.

        Equal text is not sufficient: control tokens must match as well.
        """
        if not rendered.startswith(
            self._tokenizer.decode(ids[:_QUICK_CHECK_TOKENS]).rstrip(_REPLACEMENT_CHARACTER)
        ):
            return None  # prompts that differ mostly do so early: avoid decoding the rest
        ids = array("I", ids)
        same, done = self._match_opening(ids, rendered, first)
        length = self._match_decoded(ids[same:], rendered[done:])
        return None if length is None else done + length

    def _match_opening(self, ids: "array[int]", rendered: str, first: bool) -> tuple[int, int]:
        """Return how many ids and characters match up to the end of the first long text.

        That text is usually the system prompt. Its ids are cached, so it need not be decoded.
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
    """Return a nonce of letters and digits, which templates do not alter.

    It contains no first character of a control token.
    """
    taken = {spelling[0] for spelling in table}
    alphabet = [c for c in string.ascii_letters + string.digits if c not in taken]
    return "".join(secrets.choice(alphabet) for _ in range(NONCE_LENGTH))
