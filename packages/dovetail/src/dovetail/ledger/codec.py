"""Entries as bytes: msgpack, compressed where that pays."""

import msgspec
import zstandard

from dovetail.ledger.entry import LedgerEntry

_PLAIN, _ZSTD = b"\0", b"\1"
_MIN_COMPRESS_BYTES = 300  # below that a frame's header eats what it saves
_MAX_BODY_BYTES = 1 << 28  # no turn comes near; a damaged header must not ask for all memory

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LedgerEntry)


def encode_entry(entry: LedgerEntry) -> bytes:
    """The entry as one body."""
    packed = _encoder.encode(entry)
    if len(packed) < _MIN_COMPRESS_BYTES:
        return _PLAIN + packed
    return _ZSTD + zstandard.ZstdCompressor().compress(packed)


def decode_entry(body: bytes) -> LedgerEntry | None:
    """The entry of a body, or None if it is damaged or of a version that we do not know."""
    try:
        packed = decompress(body[1:], _MAX_BODY_BYTES) if body[:1] == _ZSTD else body[1:]
        return _decoder.decode(packed)
    except (ValueError, msgspec.MsgspecError):
        return None


def decompress(frame: bytes, limit: int) -> bytes:
    """Decompress at most `limit` bytes. ValueError for anything else.

    The library's own limit is not used by it when the frame states its size: hence the check.
    """
    try:
        if zstandard.frame_content_size(frame) > limit:
            raise ValueError("too large")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=limit)
    except zstandard.ZstdError as error:
        raise ValueError("not a frame") from error
