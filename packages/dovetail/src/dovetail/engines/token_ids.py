"""Prompts as JSON, for engines that are told ids in that form.

A prompt of 80,000 ids takes two milliseconds to write down, and the next one of its session begins
with the same ids. So what was written last is kept for a while, and only what is new is written.
"""

import sys
from array import array
from collections import OrderedDict

import msgspec

MAX_CACHED_SESSIONS = 64  # whose last prompt is kept, in so many bytes at most:
MAX_CACHED_BYTES = 64 << 20
MIN_CACHED_TOKENS = 2_000  # ids that are not worth keeping

_encode = msgspec.json.encode


class PromptEncoder:
    """Writes prompts. Each session's last one is remembered, the least recent forgotten first."""

    __slots__ = ("_cache", "_cached_bytes")

    def __init__(self) -> None:
        self._cache: OrderedDict[str, tuple[array[int], bytes]] = OrderedDict()
        self._cached_bytes = 0

    def encode(self, prompt: "array[int]", session: str | None) -> msgspec.Raw:
        """The ids as a JSON list."""
        if session is None or len(prompt) < MIN_CACHED_TOKENS:
            return msgspec.Raw(_encode(prompt.tolist()))
        text = self._encode_suffix(prompt, self._evict(session))
        self._cache[session] = (prompt, text)
        self._cached_bytes += len(text)
        while len(self._cache) > MAX_CACHED_SESSIONS or self._cached_bytes > MAX_CACHED_BYTES:
            self._evict(next(iter(self._cache)))
        return msgspec.Raw(text)

    def _evict(self, session: str) -> tuple["array[int]", bytes] | None:
        known = self._cache.pop(session, None)
        if known is not None:
            self._cached_bytes -= len(known[1])
        return known

    def _encode_suffix(
        self, prompt: "array[int]", known: tuple["array[int]", bytes] | None
    ) -> bytes:
        if known is None or not _has_prefix(prompt, known[0]):
            return _encode(prompt.tolist())
        before, text = known
        rest = prompt[len(before) :]
        return text[:-1] + b"," + _encode(rest.tolist())[1:] if rest else text


def _has_prefix(prompt: "array[int]", prefix: "array[int]") -> bool:
    """Compared as bytes, nothing is copied and no number made."""
    size = len(prefix) * prefix.itemsize
    return memoryview(prompt).cast("B")[:size] == memoryview(prefix).cast("B")


TOKEN_ID_TYPECODE = "I"  # the type of an array of token ids


def pack_token_ids(ids: "array[int]") -> bytes:
    """The bytes of ids."""
    return _to_little_endian(ids).tobytes()


def unpack_token_ids(data: bytes) -> "array[int]":
    """The ids of bytes. Raises `ValueError` where they are not a whole number of ids."""
    ids = array(TOKEN_ID_TYPECODE)
    ids.frombytes(data)
    return _to_little_endian(ids)


def max_token_id(ids: "array[int]") -> int:
    """The highest of some ids, by numpy where somebody has loaded it."""
    numpy = sys.modules.get("numpy")
    return max(ids) if numpy is None else int(numpy.frombuffer(ids, numpy.uint32).max())


def _to_little_endian(ids: "array[int]") -> "array[int]":
    """Between this machine's order of bytes and the one that is sent."""
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return ids
