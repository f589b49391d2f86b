"""Reading a body: whole, in time, and never larger than allowed, also when decompressed."""

import asyncio
import zlib
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

import brotli  # type: ignore[import-untyped]
import zstandard

from dovetail.http.errors import HttpError, TooSlow, WrongEncoding
from dovetail.http.exchange import Exchange
from dovetail.http.memory import hold
from dovetail.net.exchange import ClientDisconnected
from dovetail_model import TooLarge

_MOST_MEMBERS = 16
_PIECE = 1 << 18  # bytes that are decompressed at a time
_ZSTD_FEED = 512  # bytes of zstd at a time: each may become 2^15 times as many
_ZSTD_WINDOW = 8 << 20  # what RFC 9659 allows for content encodings
_MOST_CODINGS = 4

Body = TypeVar("Body", bytes, bytearray)
Pieces = Iterator[bytes]
Codings = list[tuple[str, Callable[[bytes], Pieces]]]


async def read_body(exchange: Exchange, limit: int, seconds: float) -> bytes:
    """The body as the client meant it: of at most so many bytes, within so many seconds.

    It is held from its first byte until the request is over.
    """
    headers = exchange.headers
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(limit)
    codings = _codings(headers.get("content-encoding", ""))
    try:
        async with asyncio.timeout(seconds):
            body = await _receive(exchange, limit)
    except TimeoutError:
        raise TooSlow(f"The request body did not come within {seconds:g} s.") from None
    body = _undone(body, codings, limit)
    hold(exchange, len(body), limit)
    return body


def decoded(body: bytes, coding: str, limit: int) -> bytes:
    """A body without its `Content-Encoding`."""
    return _undone(body, _codings(coding), limit)


def _undone(body: bytes, codings: Codings, limit: int) -> bytes:
    for name, pieces in reversed(codings):
        body = _decompress(name, pieces, body, limit)
    return body


async def _receive(exchange: Exchange, limit: int) -> bytes:
    """All that was sent."""
    receive = exchange.receive
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        return _within(body, limit)  # in one piece, as nearly always
    whole = bytearray()  # not a list of parts: a client may send them byte by byte
    while True:
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        whole += message.get("body", b"")
        hold(exchange, len(_within(whole, limit)), limit)
        if not message.get("more_body", False):
            return bytes(whole)
        message = await receive()


def _within(body: Body, limit: int) -> Body:
    if len(body) > limit:
        raise _too_large(limit)
    return body


def _codings(header: str) -> Codings:
    """How to undo what was done to the body, in the order in which it was done."""
    names = [name for part in header.lower().split(",") if (name := part.strip())]
    names = [name for name in names if name != "identity"]
    for name in names:
        if name not in _DECOMPRESSORS:
            known = ", ".join(sorted({*_DECOMPRESSORS} - {"x-gzip"}))
            raise WrongEncoding(f"Content-Encoding `{name}` is not known. Known are {known}.")
    if len(names) > _MOST_CODINGS:
        raise WrongEncoding(f"More than {_MOST_CODINGS} content encodings.")
    return [(name, _DECOMPRESSORS[name]) for name in names]


def _decompress(name: str, pieces: Callable[[bytes], Pieces], body: bytes, limit: int) -> bytes:
    """The content, given up as soon as it is larger than allowed."""
    found: list[bytes] = []
    size = 0
    try:
        for piece in pieces(body):
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            found.append(piece)
    except (zlib.error, brotli.error, zstandard.ZstdError, EOFError) as error:
        raise HttpError(f"The request body is not valid {name}: {error}") from error
    return b"".join(found)


def _gzip(body: bytes) -> Pieces:
    """One gzip member or several, one after the other; each costs a copy of what is left."""
    for _ in range(_MOST_MEMBERS):
        if not body:
            return
        body = yield from _inflate(body, zlib.MAX_WBITS | 16)
    if body:
        raise EOFError("it has too many parts")


def _deflate(body: bytes) -> Pieces:
    """As the standard says, with a zlib header, or as some clients send it, without."""
    has_header = len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
    yield from _inflate(body, zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)


def _inflate(body: bytes, window: int) -> Generator[bytes, None, bytes]:
    """Gives pieces, and returns what stands behind the stream."""
    inflater = zlib.decompressobj(window)
    while not inflater.eof:
        piece = inflater.decompress(body, _PIECE)
        body = inflater.unconsumed_tail
        if not piece and not body and not inflater.eof:
            raise EOFError("it is cut off")
        yield piece
    return inflater.unused_data


def _brotli(body: bytes) -> Pieces:
    decompressor = brotli.Decompressor()
    while not decompressor.is_finished():
        piece = decompressor.process(body, output_buffer_limit=_PIECE)
        body = b""
        if not piece and not decompressor.is_finished():
            raise EOFError("it is cut off")
        yield piece


def _zstd(body: bytes) -> Pieces:
    """One frame or several. The library has no bound on its output, so it is fed in small bites."""
    engine = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    frame = engine.decompressobj()
    view = memoryview(body)
    at = 0
    while at < len(view):
        if frame.eof:
            frame = engine.decompressobj()
        bite = view[at : at + _ZSTD_FEED]
        yield frame.decompress(bite)
        at += len(bite) - len(frame.unused_data)
    if not frame.eof:
        raise EOFError("it is cut off")


_DECOMPRESSORS: dict[str, Callable[[bytes], Pieces]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The request body is larger than {limit} bytes.")
