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

UTF8 = codecs.getincrementaldecoder("utf-8")
ENOUGH = 2  # ways to spell a text that are looked for: the second one shows that there is doubt


class Recovery:
    """Finds lost ids for one vocabulary, and counts: `recovered` ids, `doubtful` places."""

    __slots__ = ("_fragments", "_longest", "_tokenizer", "doubtful", "recovered")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._fragments = _fragments(tokenizer)
        self._longest = max(map(len, self._fragments), default=0)
        self.recovered = 0
        self.doubtful = 0

    def complete(self, text: str, lost: int, given: Sequence[int]) -> tuple[list[int], bool]:
        """All ids of a text of which the last were given, and whether they are certain.

        Where they are not, the ids spell the text in the vocabulary's usual way.
        """
        tail = b"".join(map(self._tokenizer.bytes_of, given))
        whole = text.encode()
        ways: list[list[int]] = []
        if given and whole.endswith(tail):
            ways = self._ways(whole[: len(whole) - len(tail)], lost)
        if len(ways) == 1:
            self.recovered += lost
            return [*ways[0], *given], True
        self.doubtful += 1
        return self._tokenizer.encode_plain(text), False

    def give_up(self) -> None:
        """Ids were lost of which no text ever came."""
        self.doubtful += 1

    def _ways(self, spelled: bytes, count: int) -> list[list[int]]:
        """Up to two ways to spell these bytes with so many tokens, each ending in a character."""
        found: list[list[int]] = []
        open_ways: list[tuple[int, list[int]]] = [(0, [])]
        while open_ways and len(found) < ENOUGH:
            at, ids = open_ways.pop()
            if len(ids) == count:
                if at == len(spelled):
                    found.append(ids)
                continue
            for end in range(at + 1, min(at + self._longest, len(spelled)) + 1):
                if _ends_inside(spelled[:end]):
                    more = self._fragments.get(spelled[at:end], ())
                    open_ways += [(end, [*ids, id]) for id in more]
        return found


def _fragments(tokenizer: Tokenizer) -> dict[bytes, list[int]]:
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


def _ends_inside(spelled: bytes) -> bool:
    """Whether this is text that ends inside a character."""
    decoder = UTF8()
    try:
        decoder.decode(spelled)
    except UnicodeDecodeError:
        return False
    return bool(decoder.getstate()[0])
