"""Incremental detokenization."""

from codecs import utf_8_decode
from collections.abc import Container, Sequence

from dovetail_tokenizers.tokenizer import Piece, Tokenizer


class TokenTextCache(dict[int, str | None]):
    """The texts of plain ids, each looked up once; None where an id is not plain text.

    That is: a control token, a part of a character, no token at all, or one of `excluded`, ids
    that mean something to the caller. Shared by all streams of a model, and so are its strings.
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
    """Decode ids incrementally; the pieces joined are `decode` of all ids at once.

    A character whose bytes are spread over several tokens appears when its last byte has come.
    A leading space is never stripped: the ids continue a prompt. With the `texts` of a model, which
    its streams share, plain ids cost a look-up each.
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
        self._pending = b""  # the bytes of an unfinished character

    @property
    def has_pending_bytes(self) -> bool:
        """Whether the bytes of an unfinished character are held back."""
        return bool(self._pending)

    def feed(self, ids: Sequence[int]) -> list[Piece]:
        """What these ids add: plain ids joined to one piece, each control token a piece."""
        known = self._texts
        if known is not None and not self._pending:
            texts = [text for id in ids if (text := known[id]) is not None]
            if len(texts) == len(ids):
                return [Piece("".join(texts), False)] if texts else []
        return self._decode(ids)

    def finish(self) -> list[Piece]:
        """What was held back, as U+FFFD."""
        pieces: list[Piece] = []
        self._add(pieces, b"", final=True)
        return pieces

    def _decode(self, ids: Sequence[int]) -> list[Piece]:
        """Byte for byte: something is held, or may have to be, or a control token is among them."""
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

    def _add(self, pieces: list[Piece], plain: bytes | bytearray, *, final: bool) -> None:
        pending = self._pending + plain
        text, read = utf_8_decode(pending, "replace", final)
        self._pending = pending[read:]
        if text:
            pieces.append(Piece(text, False))


def _decode_complete(spelled: bytes) -> str | None:
    """The text of bytes that are whole characters, and some."""
    try:
        return spelled.decode() or None
    except UnicodeDecodeError:
        return None
