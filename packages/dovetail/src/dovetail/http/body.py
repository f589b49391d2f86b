"""Read request bodies with limits on time and on size, before and after decompression."""

import asyncio
import zlib
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

import brotli  # type: ignore[import-untyped]
import zstandard

from dovetail.http.errors import HttpError, RequestTimeout, UnsupportedEncoding
from dovetail.http.exchange import ApiExchange
from dovetail.http.memory import reserve_memory
from dovetail.net.exchange import ClientDisconnected
from dovetail_model import RequestTooLarge

_MAX_GZIP_MEMBERS = 16
_OUTPUT_CHUNK_BYTES = 1 << 18  # decompressed at a time
_ZSTD_INPUT_CHUNK_BYTES = 512  # each byte may become 2^15 bytes
_ZSTD_MAX_WINDOW_BYTES = 8 << 20  # what RFC 9659 allows for content encodings
_MAX_CODINGS = 4

Body = TypeVar("Body", bytes, bytearray)
Chunks = Iterator[bytes]
Codings = list[tuple[str, Callable[[bytes], Chunks]]]


async def read_body(exchange: ApiExchange, limit: int, seconds: float) -> bytes:
    """Read and decompress a body: at most `limit` bytes, within `seconds`.

    The memory of the body is reserved from its first byte until the request has finished.
    """
    headers = exchange.headers
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(limit)
    codings = _parse_codings(headers.get("content-encoding", ""))
    try:
        async with asyncio.timeout(seconds):
            body = await _receive(exchange, limit)
    except TimeoutError:
        raise RequestTimeout(f"The request body did not arrive within {seconds:g} s.") from None
    body = _remove_codings(body, codings, limit)
    reserve_memory(exchange, len(body), limit)
    return body


def decode_content(body: bytes, coding: str, limit: int) -> bytes:
    """Remove the `Content-Encoding` of a body."""
    return _remove_codings(body, _parse_codings(coding), limit)


def _remove_codings(body: bytes, codings: Codings, limit: int) -> bytes:
    for name, decompress in reversed(codings):
        body = _decompress(name, decompress, body, limit)
    return body


async def _receive(exchange: ApiExchange, limit: int) -> bytes:
    """Receive the complete body."""
    receive = exchange.receive
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        return _check_size(body, limit)  # fast path: nearly all bodies are one message
    parts = bytearray()  # a list would need too much memory if a client sends single bytes
    while True:
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        parts += message.get("body", b"")
        reserve_memory(exchange, len(_check_size(parts, limit)), limit)
        if not message.get("more_body", False):
            return bytes(parts)
        message = await receive()


def _check_size(body: Body, limit: int) -> Body:
    if len(body) > limit:
        raise _too_large(limit)
    return body


def _parse_codings(header: str) -> Codings:
    """Return the decompressors of a header, in the order in which the encodings were applied."""
    names = [name for part in header.lower().split(",") if (name := part.strip())]
    names = [name for name in names if name != "identity"]
    for name in names:
        if name not in _DECOMPRESSORS:
            known = ", ".join(sorted({*_DECOMPRESSORS} - {"x-gzip"}))
            raise UnsupportedEncoding(
                f"Content-Encoding `{name}` is not supported. Supported: {known}."
            )
    if len(names) > _MAX_CODINGS:
        raise UnsupportedEncoding(
            f"Content-Encoding must list at most {_MAX_CODINGS} encodings, got {len(names)}."
        )
    return [(name, _DECOMPRESSORS[name]) for name in names]


def _decompress(name: str, decompress: Callable[[bytes], Chunks], body: bytes, limit: int) -> bytes:
    """Decompress, and stop as soon as the content exceeds `limit` bytes."""
    chunks: list[bytes] = []
    size = 0
    try:
        for chunk in decompress(body):
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            chunks.append(chunk)
    except (zlib.error, brotli.error, zstandard.ZstdError, EOFError) as error:
        raise HttpError(f"The request body is not valid {name}: {error}") from error
    return b"".join(chunks)


def _decompress_gzip(body: bytes) -> Chunks:
    """Decompress gzip members. Each member costs a copy of the remaining data."""
    for _ in range(_MAX_GZIP_MEMBERS):
        if not body:
            return
        body = yield from _inflate(body, zlib.MAX_WBITS | 16)
    if body:
        raise EOFError(f"it has more than {_MAX_GZIP_MEMBERS} members")


def _decompress_deflate(body: bytes) -> Chunks:
    """Decompress with a zlib header, as the standard requires, or without, as some clients do."""
    has_header = len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
    yield from _inflate(body, zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)


def _inflate(body: bytes, window: int) -> Generator[bytes, None, bytes]:
    """Yield decompressed chunks, and return the data after the compressed stream."""
    inflater = zlib.decompressobj(window)
    while not inflater.eof:
        chunk = inflater.decompress(body, _OUTPUT_CHUNK_BYTES)
        body = inflater.unconsumed_tail
        if not chunk and not body and not inflater.eof:
            raise EOFError("it is truncated")
        yield chunk
    return inflater.unused_data


def _decompress_brotli(body: bytes) -> Chunks:
    decompressor = brotli.Decompressor()
    while not decompressor.is_finished():
        chunk = decompressor.process(body, output_buffer_limit=_OUTPUT_CHUNK_BYTES)
        body = b""
        if not chunk and not decompressor.is_finished():
            raise EOFError("it is truncated")
        yield chunk


def _decompress_zstd(body: bytes) -> Chunks:
    """Decompress frames. The library does not limit its output, so the input chunks are small."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
    frame = decompressor.decompressobj()
    view = memoryview(body)
    at = 0
    while at < len(view):
        if frame.eof:
            frame = decompressor.decompressobj()
        chunk = view[at : at + _ZSTD_INPUT_CHUNK_BYTES]
        yield frame.decompress(chunk)
        at += len(chunk) - len(frame.unused_data)
    if not frame.eof:
        raise EOFError("it is truncated")


_DECOMPRESSORS: dict[str, Callable[[bytes], Chunks]] = {
    "gzip": _decompress_gzip,
    "x-gzip": _decompress_gzip,
    "deflate": _decompress_deflate,
    "br": _decompress_brotli,
    "zstd": _decompress_zstd,
}


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"The request body is larger than {limit} bytes.")
