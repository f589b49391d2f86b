"""The ids that llama.cpp leaves out of its stream, found again.

Its server holds back text that ends inside a character, and forgets the ids of what it held back:
of `a🦜b`, in five tokens, the three `a`, the last one of `🦜`, and `b` arrive. The count of tokens
tells how many are missing, and the text, once complete, what they spell. A missing token always
left an incomplete character behind, so only the few tokens of a vocabulary that are no text by
themselves come into question: nearly always in one way. Where there are two, nothing can decide.
"""

import codecs
from collections.abc import Sequence

from dovetail_tokenizers import Tokenizer

Utf8Decoder = codecs.getincrementaldecoder("utf-8")
MAX_CANDIDATES = (
    2  # ways to spell a text that are looked for: the second one shows that there is doubt
)


class TokenIdRecovery:
    """Finds lost ids for one vocabulary, and counts: `recovered` ids, `doubtful` places."""

    __slots__ = ("_fragments", "_max_fragment_bytes", "_tokenizer", "ambiguous", "recovered")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._fragments = _partial_character_tokens(tokenizer)
        self._max_fragment_bytes = max(map(len, self._fragments), default=0)
        self.recovered = 0
        self.ambiguous = 0

    def recover(self, text: str, missing: int, given: Sequence[int]) -> tuple[list[int], bool]:
        """All ids of a text of which the last were given, and whether they are certain.

        Where they are not, the ids spell the text in the vocabulary's usual way.
        """
        tail = b"".join(map(self._tokenizer.bytes_of, given))
        whole = text.encode()
        ways: list[list[int]] = []
        if given and whole.endswith(tail):
            ways = self._find_spellings(whole[: len(whole) - len(tail)], missing)
        if len(ways) == 1:
            self.recovered += missing
            return [*ways[0], *given], True
        self.ambiguous += 1
        return self._tokenizer.encode_plain(text), False

    def record_unrecoverable(self) -> None:
        """Ids were lost of which no text ever came."""
        self.ambiguous += 1

    def _find_spellings(self, spelled: bytes, count: int) -> list[list[int]]:
        """Up to two ways to spell these bytes with so many tokens, each ending in a character."""
        found: list[list[int]] = []
        open_ways: list[tuple[int, list[int]]] = [(0, [])]
        while open_ways and len(found) < MAX_CANDIDATES:
            at, ids = open_ways.pop()
            if len(ids) == count:
                if at == len(spelled):
                    found.append(ids)
                continue
            for end in range(at + 1, min(at + self._max_fragment_bytes, len(spelled)) + 1):
                if _ends_mid_character(spelled[:end]):
                    more = self._fragments.get(spelled[at:end], ())
                    open_ways += [(end, [*ids, id]) for id in more]
        return found


def _partial_character_tokens(tokenizer: Tokenizer) -> dict[bytes, list[int]]:
    """The tokens that are no text by themselves, by what they spell."""
    found: dict[bytes, list[int]] = {}
    for id in range(tokenizer.size):
        spelled = tokenizer.bytes_of(id)
        if not spelled.isascii() and not tokenizer.is_control(id) and not _is_text(spelled):
            found.setdefault(spelled, []).append(id)
    return found


def _is_text(spelled: bytes) -> bool:
    try:
        spelled.decode()
    except UnicodeDecodeError:
        return False
    return True


def _ends_mid_character(spelled: bytes) -> bool:
    """Whether this is text that ends inside a character."""
    decoder = Utf8Decoder()
    try:
        decoder.decode(spelled)
    except UnicodeDecodeError:
        return False
    return bool(decoder.getstate()[0])
