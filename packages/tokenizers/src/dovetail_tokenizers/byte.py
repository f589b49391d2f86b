"""A tokenizer with one id per byte, without dependencies, for tests, demos and benchmarks."""

from array import array
from collections.abc import Iterable

from dovetail_tokenizers.control import ControlTable
from dovetail_tokenizers.encoding import decode_ids, encode_parts, replace_lone_surrogates

BYTE_COUNT = 256


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8; control tokens follow in the given order."""

    __slots__ = ("controls", "size")

    def __init__(self, controls: Iterable[str] = ()) -> None:
        ids = {spelling: BYTE_COUNT + n for n, spelling in enumerate(dict.fromkeys(controls))}
        self.controls = ControlTable(ids)
        self.size = BYTE_COUNT + len(ids)

    def encode(self, text: str) -> list[int]:
        return encode_parts(self, self.controls, text)

    def encode_plain(self, text: str, *, first: bool = False) -> list[int]:
        return list(replace_lone_surrogates(text).encode())

    def pack_plain(self, text: str, *, first: bool = False) -> "array[int]":
        return array("I", self.encode_plain(text, first=first))

    def decode(self, ids: Iterable[int]) -> str:
        return decode_ids(self, ids)

    def bytes_of(self, id: int) -> bytes:
        if 0 <= id < BYTE_COUNT:
            return bytes((id,))
        return (self.controls.spelling(id) or "").encode()

    def is_control(self, id: int) -> bool:
        return self.controls.has_id(id)
