"""Read the metadata of GGUF files: everything about a model except its weights.

Only the head of the file is read, with the standard library. This takes a fraction of a second for
a vocabulary of 150,000 entries.
"""

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

Value: TypeAlias = "bool | int | float | str | list[Value]"
MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY, BOOL = 8, 9, 7
# GGUF type number -> type code of `struct` and `array`.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", BOOL: "?", 10: "Q", 11: "q"}
NUMBERS[12] = "d"
MAX_DEPTH = 4


def read_gguf_metadata(path: str | Path) -> dict[str, Value]:
    """Return the file's metadata, such as `general.architecture` and the vocabulary."""
    with Path(path).open("rb") as file:
        if file.read(4) != MAGIC:
            raise ValueError(f"{path} is not a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                return _Reader(content).metadata()
            except (struct.error, UnicodeDecodeError, OverflowError, MemoryError) as fault:
                raise ValueError(f"{path}: invalid GGUF metadata ({fault})") from fault
            except ValueError as fault:
                raise ValueError(f"{path}: {fault}") from fault


class _Reader:
    """Reads values in sequence. Strings and arrays are preceded by their length."""

    __slots__ = ("_at", "_content", "_size")

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._size = len(content)
        self._at = len(MAGIC)

    def metadata(self) -> dict[str, Value]:
        version = self._number("I")
        if version not in VERSIONS:
            raise ValueError(f"GGUF version {version} is not supported (supported: 2, 3)")
        self._number("Q")  # number of tensors
        count = self._number("Q")
        values: dict[str, Value] = {}
        for _ in range(int(count)):
            key = self._string()
            values[key] = self._value(int(self._number("I")), MAX_DEPTH)
        return values

    def _value(self, kind: int, depth: int) -> Value:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            return self._array(depth)
        return self._number(_letter(kind))

    def _array(self, depth: int) -> list[Value]:
        kind, count = int(self._number("I")), int(self._number("Q"))
        if count > self._size or not depth:
            raise ValueError("invalid GGUF metadata (an array exceeds the file)")
        if kind == STRING:
            return self._repeat(self._string, count)
        if kind == ARRAY:
            return self._repeat(lambda: self._array(depth - 1), count)
        return self._numbers(_letter(kind), count)

    def _repeat(self, read: "Callable[[], Value]", count: int) -> list[Value]:
        return [read() for _ in range(count)]

    def _string(self) -> str:
        (length,) = struct.unpack_from("<Q", self._content, self._at)
        start = self._at + 8
        self._at = end = start + length
        if end > self._size:
            raise ValueError("invalid GGUF metadata (a string exceeds the file)")
        # Some writers truncate a token in the middle of a character.
        return self._content[start:end].decode("utf-8", "replace")

    def _number(self, letter: str) -> int | float | bool:
        (value,) = struct.unpack_from(f"<{letter}", self._content, self._at)
        self._at += struct.calcsize(f"<{letter}")
        number: int | float | bool = value
        return number

    def _numbers(self, letter: str, count: int) -> list[Value]:
        found = struct.unpack_from(f"<{count}{letter}", self._content, self._at)
        self._at += struct.calcsize(f"<{count}{letter}")
        return list(found)


def _letter(kind: int) -> str:
    letter = NUMBERS.get(kind)
    if letter is None:
        raise ValueError(f"invalid GGUF metadata (unknown value type {kind})")
    return letter
