"""Describe images and documents in text, for models that read only text.

A description depends only on the block, because it becomes part of the prompt's prefix: the same
block must always give the same text. Damaged data never raises.
"""

import base64
import re
from collections.abc import Callable, Iterable

from dovetail_model.block import DocumentBlock, ImageBlock

_MAX_NAME_CHARS = 200
_HEADER_CHARS = 1 << 18  # of base64: metadata may precede the size of a JPEG
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,60}", re.ASCII)
_SIZE_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # of JPEG: start of a frame

PixelSize = tuple[int, int]


def describe_image(image: ImageBlock) -> str:
    """Describe an image: media type, pixel size, byte size and URL, as far as they are known."""
    header = decode_base64(image.data or "", _HEADER_CHARS)
    kind = find_media_type(header) or _declared_type(image.media_type)
    facts = [kind, _pixels(kind, header), _size(image.data), _name(image.url)]
    return f"[image{_listed(facts)}; this model reads only text]"


def describe_document(document: DocumentBlock, *details: str) -> str:
    """Describe a document: title, media type, byte size, URL and further details."""
    kind = document_type(document)
    facts = [_name(document.title), kind, _size(document.data), _name(document.url), *details]
    return f"[document{_listed(facts)}]"


def document_type(document: DocumentBlock) -> str:
    """Return the media type of a document: what its data shows, else what the client declared."""
    header = decode_base64(document.data or "", 64)
    return find_media_type(header) or _declared_type(document.media_type)


def find_media_type(header: bytes) -> str:
    """Return the media type of data by its first bytes, or an empty text."""
    for magic, kind in _MAGIC:
        if header.startswith(magic):
            return kind
    return "image/webp" if header[:4] == b"RIFF" and header[8:12] == b"WEBP" else ""


def decode_base64(data: str, max_chars: int | None = None) -> bytes:
    """Decode base64, or its first `max_chars`. Returns no bytes if it is damaged."""
    text = "".join((data if max_chars is None else data[:max_chars]).split())
    if max_chars is not None:
        text = text[: len(text) // 4 * 4]
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return b""


def base64_size(data: str) -> int:
    """Return the number of bytes of base64 data without decoding it."""
    chars = len(data) - data.count("\n") - data.count("\r") - data[-4:].count("=")
    return chars * 3 // 4


def _listed(facts: Iterable[str]) -> str:
    known = ", ".join(filter(None, facts))
    return f": {known}" if known else ""


def _declared_type(media_type: str) -> str:
    return media_type if _MEDIA_TYPE.fullmatch(media_type) else ""


def _size(data: str | None) -> str:
    return "" if data is None else f"{base64_size(data)} bytes"


def _name(name: str | None) -> str:
    """Return a name on one line, shortened."""
    line = " ".join((name or "")[: 4 * _MAX_NAME_CHARS].split())
    return line if len(line) <= _MAX_NAME_CHARS else f"{line[:_MAX_NAME_CHARS]}..."


def _pixels(kind: str, header: bytes) -> str:
    reader = _PIXEL_READERS.get(kind)
    size = reader(header) if reader is not None else None
    return f"{size[0]}x{size[1]} pixels" if size is not None and all(size) else ""


def _png_size(header: bytes) -> PixelSize | None:
    if header[12:16] != b"IHDR" or len(header) < 24:
        return None
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


def _gif_size(header: bytes) -> PixelSize | None:
    if len(header) < 10:
        return None
    return int.from_bytes(header[6:8], "little"), int.from_bytes(header[8:10], "little")


def _bmp_size(header: bytes) -> PixelSize | None:
    if len(header) < 26:
        return None
    height = int.from_bytes(header[22:26], "little", signed=True)  # negative: top-down rows
    return int.from_bytes(header[18:22], "little"), abs(height)


def _jpeg_size(header: bytes) -> PixelSize | None:
    """Find the start of the frame: segments with their lengths come before it."""
    at = 2
    while at + 9 <= len(header) and header[at] == 0xFF:
        marker, length = header[at + 1], int.from_bytes(header[at + 2 : at + 4], "big")
        if marker == 0xFF:  # padding
            at += 1
        elif marker in _SIZE_MARKERS:
            height, width = header[at + 5 : at + 7], header[at + 7 : at + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        else:
            at += 2 + max(2, length)
    return None


def _webp_size(header: bytes) -> PixelSize | None:
    kind = header[12:16]
    if len(header) < 30:
        return None
    if kind == b"VP8X":
        width, height = header[24:27], header[27:30]
        return int.from_bytes(width, "little") + 1, int.from_bytes(height, "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(header[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = header[26:28], header[28:30]
        return int.from_bytes(width, "little") & 0x3FFF, int.from_bytes(height, "little") & 0x3FFF
    return None


_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"%PDF-", "application/pdf"),
)
_PIXEL_READERS: dict[str, Callable[[bytes], PixelSize | None]] = {
    "image/png": _png_size,
    "image/jpeg": _jpeg_size,
    "image/gif": _gif_size,
    "image/bmp": _bmp_size,
    "image/webp": _webp_size,
}
