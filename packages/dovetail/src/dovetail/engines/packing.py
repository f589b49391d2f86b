"""Token ids as bytes, four for each, the least significant first: a prompt without its digits.

Where a prompt is long, what is done with each of its ids by itself is felt before the first token
of the answer. Nothing here is.
"""

import sys
from array import array

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
