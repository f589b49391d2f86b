"""Incremental detokenization."""

from codecs import utf_8_decode
from collections.abc import Container, Sequence

from dovetail_tokenizers.tokenizer import Piece, Tokenizer


class TokenTextCache(dict[int, str | None]):
    """A cache of the texts of plain ids; the value of any other id is None.

    Other ids are control tokens, parts of a character, ids outside the vocabulary, and `excluded`:
    ids that have a meaning for the caller. All streams of a model share one cache and its strings.
    """

    __slots__ = ("_excluded", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, excluded: Container[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._excluded = excluded

    def __missing__(self, id: int) -> str | None:
        if not 0 <= id < self._tokenizer.size:
            return None
        text = None
        if id not in self._excluded and not self._tokenizer.is_control(id):
            text = _decode_complete(self._tokenizer.bytes_of(id))
        self[id] = text
        return text


class Detokenizer:
    """Decode ids incrementally. The joined pieces equal `decode` of all ids.

    A character whose bytes are spread over several tokens is emitted with its last byte.
    A leading space is never stripped, because the ids continue a prompt. With `texts`, the cache
    shared by the streams of a model, each plain id costs one lookup.
    """

    __slots__ = ("_keep_controls", "_pending", "_texts", "_tokenizer")

    def __init__(
        self,
        tokenizer: Tokenizer,
        texts: TokenTextCache | None = None,
        *,
        keep_controls: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._texts = texts
        self._keep_controls = keep_controls
        self._pending = b""  # bytes of an incomplete character

    @property
    def has_pending_bytes(self) -> bool:
        """Whether the bytes of an incomplete character are held back."""
        return bool(self._pending)

    def feed(self, ids: Sequence[int]) -> list[Piece]:
        """Return the text of these ids: one piece per run of plain ids and per control token."""
        known = self._texts
        if known is not None and not self._pending:
            texts = [text for id in ids if (text := known[id]) is not None]
            if len(texts) == len(ids):
                return [Piece("".join(texts), False)] if texts else []
        return self._decode(ids)

    def finish(self) -> list[Piece]:
        """Return the bytes that were held back, as U+FFFD."""
        pieces: list[Piece] = []
        self._add(pieces, b"", final=True)
        return pieces

    def _decode(self, ids: Sequence[int]) -> list[Piece]:
        """Decode byte by byte: for incomplete characters and control tokens."""
        pieces: list[Piece] = []
        plain = bytearray()
        for id in ids:
            spelled = self._tokenizer.bytes_of(id)
            if not self._tokenizer.is_control(id):
                plain += spelled
                continue
            # No character spans a control token, so an incomplete one cannot be completed.
            self._add(pieces, plain, final=True)
            plain = bytearray()
            if self._keep_controls:
                pieces.append(Piece(spelled.decode("utf-8", "replace"), True))
        self._add(pieces, plain, final=False)
        return pieces

    def _add(self, pieces: list[Piece], plain: bytes | bytearray, *, final: bool) -> None:
        pending = self._pending + plain
        text, read = utf_8_decode(pending, "replace", final)
        self._pending = pending[read:]
        if text:
            pieces.append(Piece(text, False))


def _decode_complete(spelled: bytes) -> str | None:
    """Decode bytes that are one or more complete characters; return None for any others."""
    try:
        return spelled.decode() or None
    except UnicodeDecodeError:
        return None
