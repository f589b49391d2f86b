"""Frames of the step protocol: four bytes with the length of the body, little-endian, then it."""

from collections.abc import Iterator

import msgspec

HEADER_BYTES = 4
#: A prompt of a million tokens has 4 MiB.
MAX_FRAME_BYTES = 64 << 20

_encode = msgspec.msgpack.Encoder().encode


class FrameTooLarge(Exception):
    """A frame exceeds the limit, or the peer uses another protocol."""


def encode_frame(message: msgspec.Struct) -> bytes:
    """Encode a message with its header. Raise `FrameTooLarge`: it would end the connection."""
    body = _encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameTooLarge(f"a frame of {len(body)} bytes exceeds {MAX_FRAME_BYTES}")
    return len(body).to_bytes(HEADER_BYTES, "little") + body


class FrameReader:
    """Splits received bytes into frames of at most `max_bytes`."""

    __slots__ = ("_buffer", "_needed", "max_bytes")

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()  # an incomplete frame
        self._needed = 0  # bytes in the buffer at which the frame is complete

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """Yield the bodies of the frames that are complete.

        A step usually arrives in one piece, which is then not copied.
        """
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        start, size = 0, len(data)
        view = memoryview(data)
        while size - start >= HEADER_BYTES:
            length = int.from_bytes(view[start : start + HEADER_BYTES], "little")
            if length > self.max_bytes:
                raise FrameTooLarge(f"a frame of {length} bytes exceeds {self.max_bytes}")
            end = start + HEADER_BYTES + length
            if end > size:
                self._needed = end - start
                break
            yield view[start + HEADER_BYTES : end]
            start = end
        else:
            self._needed = HEADER_BYTES
        self._buffer += view[start:]
