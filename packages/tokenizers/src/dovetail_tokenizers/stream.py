"""Ids to text, as they come."""

import codecs
from collections.abc import Iterable

from dovetail_tokenizers.tokenizer import Piece, Tokenizer

UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Decodes ids one feed at a time; the pieces joined are `decode` of all ids at once.

    A character whose bytes are spread over several tokens appears when its last byte has come.
    A leading space is never stripped: the ids continue a prompt.
    """

    __slots__ = ("_decoder", "_keep_controls", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, *, keep_controls: bool = True) -> None:
        self._tokenizer = tokenizer
        self._keep_controls = keep_controls
        self._decoder = UTF8("replace")

    @property
    def holding(self) -> bool:
        """Whether the bytes of an unfinished character are held back."""
        return bool(self._decoder.getstate()[0])

    def feed(self, ids: Iterable[int]) -> list[Piece]:
        """What these ids add: plain ids joined to one piece, each control token a piece."""
        pieces: list[Piece] = []
        plain = bytearray()
        for id in ids:
            spelled = self._tokenizer.bytes_of(id)
            if not self._tokenizer.is_control(id):
                plain += spelled
                continue
            # No character spans a control token: what is incomplete here stays so.
            self._add(pieces, plain, final=True)
            plain = bytearray()
            if self._keep_controls:
                pieces.append(Piece(spelled.decode("utf-8", "replace"), True))
        self._add(pieces, plain, final=False)
        return pieces

    def finish(self) -> list[Piece]:
        """What was held back, as U+FFFD."""
        pieces: list[Piece] = []
        self._add(pieces, b"", final=True)
        return pieces

    def _add(self, pieces: list[Piece], plain: bytes | bytearray, *, final: bool) -> None:
        text = self._decoder.decode(plain, final)
        if text:
            pieces.append(Piece(text, False))
