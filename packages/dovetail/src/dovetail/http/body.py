"""Read request bodies with limits on time, size and content, before and after decompression.

Only small bodies are decompressed, checked and decoded on the event loop.
"""

import asyncio
import zlib
from collections.abc import Callable, Generator, Iterator
from io import BytesIO
from typing import TypeVar

import brotli  # type: ignore[import-untyped]
import zstandard

from dovetail.http.errors import HttpError, RequestTimeout, UnsupportedEncoding
from dovetail.http.exchange import ApiExchange
from dovetail.http.memory import reserve_memory
from dovetail.net.exchange import ClientDisconnected
from dovetail.pipeline.concurrency import run_in_body_thread
from dovetail_model import RequestTooLarge
from dovetail_protocols import DEFAULT_LIMITS, RequestLimits, check_body, count_values_up_to

_MAX_GZIP_MEMBERS = 16
_OUTPUT_CHUNK_BYTES = 1 << 18  # decompressed at a time
_ZSTD_MIN_INPUT_BYTES = 64  # each byte may become 2^15 bytes
_ZSTD_MAX_INPUT_BYTES = 512
_ZSTD_MAX_WINDOW_BYTES = 8 << 20  # what RFC 9659 allows for content encodings
_MAX_CODINGS = 4
_MAX_RATIO = 1000  # of the decompressed to the compressed size; repetitive JSON reaches 200
_MIN_RATIO_BYTES = 1 << 20  # decompressed bytes that are allowed at any ratio
_INLINE_BYTES = 1 << 18  # decompressed, or read from a store and decoded, on the event loop
_STEP_BYTES = 1 << 22  # decompressed in a thread before the next body gets its turn
_MIN_CHECKED_BYTES = 1 << 14  # smaller bodies cannot contain many values
_MAX_INLINE_DECODE_BYTES = 1 << 20
_MAX_INLINE_VALUES = 5_000  # 1 to 50 ms of decoding
_MAX_UNCHECKED_VALUES = 20_000
_MAX_UNCHECKED_BYTES = 4 << 20

T = TypeVar("T")
Chunks = Iterator[bytes]
Codings = list[tuple[str, Callable[[bytes], Chunks]]]


async def read_body(
    exchange: ApiExchange, limit: int, seconds: float, limits: RequestLimits = DEFAULT_LIMITS
) -> bytes:
    """Read, decompress and check a body: at most `limit` bytes, within `seconds`.

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
    for name, decompress in reversed(codings):
        body = await _decompress_in_steps(exchange, Decompression(name, decompress, body, limit))
    reserve_memory(exchange, len(body), limit)
    if len(body) >= _MIN_CHECKED_BYTES:
        await _check_content(body, limits)
    return body


async def run_decoder(body: bytes, decode: Callable[[], T]) -> T:
    """Decode a body, in a thread if that takes long."""
    if len(body) < _MIN_CHECKED_BYTES or (
        len(body) <= _MAX_INLINE_DECODE_BYTES and count_values_up_to(body) <= _MAX_INLINE_VALUES
    ):
        return decode()
    return await run_in_body_thread(len(body), decode)


async def run_sized(size: int, work: Callable[[], T]) -> T:
    """Do work on JSON of this size in bytes, in a thread if that takes long."""
    return work() if size < _INLINE_BYTES else await run_in_body_thread(size, work)


def decode_content(body: bytes, coding: str, limit: int) -> bytes:
    """Remove the `Content-Encoding` of a body."""
    for name, decompress in reversed(_parse_codings(coding)):
        decompression = Decompression(name, decompress, body, limit)
        decompression.advance(limit + 1)
        body = decompression.content()
    return body


async def _decompress_in_steps(exchange: ApiExchange, decompression: "Decompression") -> bytes:
    """Decompress a body. Large ones take turns in a thread."""
    done = decompression.advance(_INLINE_BYTES)
    while not done:
        done = await run_in_body_thread(0, lambda: decompression.advance(_STEP_BYTES))
        reserve_memory(exchange, decompression.size, decompression.limit)
    return decompression.content()


async def _check_content(body: bytes, limits: RequestLimits) -> None:
    """Check the content of a body that may take long to decode."""
    if len(body) <= _MAX_UNCHECKED_BYTES and count_values_up_to(body) <= _MAX_UNCHECKED_VALUES:
        return
    await run_in_body_thread(len(body), lambda: check_body(body, limits))


async def _receive(exchange: ApiExchange, limit: int) -> bytes:
    """Receive the complete body."""
    receive = exchange.receive
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")  # fast path: nearly all bodies are one message
        if len(body) > limit:
            raise _too_large(limit)
        return body
    # A list would need too much memory if a client sends single bytes, and joining it, or copying a
    # bytearray, would block all threads.
    parts = BytesIO()
    while True:
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        parts.write(message.get("body", b""))
        if parts.tell() > limit:
            raise _too_large(limit)
        reserve_memory(exchange, parts.tell(), limit)
        if not message.get("more_body", False):
            return parts.getvalue()
        message = await receive()


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


class Decompression:
    """Decompress a body, and stop as soon as the content exceeds a limit.

    size: Decompressed bytes so far.
    """

    __slots__ = ("_content", "_iterator", "_max_ratio_bytes", "_name", "limit", "size")

    def __init__(
        self, name: str, decompress: Callable[[bytes], Chunks], body: bytes, limit: int
    ) -> None:
        self._name = name
        self._iterator = decompress(body)
        self._content = BytesIO()
        self._max_ratio_bytes = max(_MIN_RATIO_BYTES, _MAX_RATIO * len(body))
        self.limit = limit
        self.size = 0

    def advance(self, count: int) -> bool:
        """Decompress about `count` more bytes. Returns whether the body is complete."""
        stop = self.size + count
        try:
            for chunk in self._iterator:
                self.size += len(chunk)
                self._check_size()
                self._content.write(chunk)
                if self.size >= stop:
                    return False
        except (zlib.error, brotli.error, zstandard.ZstdError, EOFError) as error:
            raise HttpError(f"The request body is not valid {self._name}: {error}") from error
        return True

    def content(self) -> bytes:
        return self._content.getvalue()

    def _check_size(self) -> None:
        if self.size > self.limit:
            raise _too_large(self.limit)
        if self.size > self._max_ratio_bytes:
            raise RequestTooLarge(
                f"The request body is more than {_MAX_RATIO} times as large as its {self._name} "
                "data; send it with less compression."
            )


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
    """Decompress frames.

    The library does not limit its output, so the input chunks are small unless they expand little.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
    frame = decompressor.decompressobj()
    view = memoryview(body)
    at, step = 0, _ZSTD_MIN_INPUT_BYTES
    while at < len(view):
        if frame.eof:
            frame = decompressor.decompressobj()
        chunk = view[at : at + step]
        content = frame.decompress(chunk)
        yield content
        at += len(chunk) - len(frame.unused_data)
        grown = 2 * step if len(content) <= _OUTPUT_CHUNK_BYTES // 4 else step // 4
        step = min(max(grown, _ZSTD_MIN_INPUT_BYTES), _ZSTD_MAX_INPUT_BYTES)
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
