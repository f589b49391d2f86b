"""The interface of tokenizers.

A control token is a token that gives a prompt its structure (`<|im_start|>`, `<think>`): every
added token marked special, and those that the caller names because a chat template or a parser
relies on them. All other tokens are plain.

`decode` joins what the tokens stand for and strips nothing. Tokenizers of the SentencePiece kind
put a space before the very first word of a text; as ids nearly always continue a prompt, that
space is part of the text, and removing it would join two words.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


class Tokenizer(Protocol):
    """Text to ids and back."""

    @property
    def controls(self) -> Mapping[str, int]:
        """The spelling of every control token, and its id."""

    @property
    def size(self) -> int:
        """The largest id plus one."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which the spelling of a control token means that token."""

    def encode_plain(self, text: str, *, first: bool = False) -> list[int]:
        """Ids of a text in which nothing is a control token.

        `first` says that nothing stands before the text, which matters to tokenizers that put a
        space in front of the first word.
        """

    def pack_plain(self, text: str, *, first: bool = False) -> "array[int]":
        """The same, packed. The result may be cached and must not be changed."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, control tokens spelled out, invalid UTF-8 as U+FFFD."""

    def bytes_of(self, id: int) -> bytes:
        """What one token stands for; nothing if there is no such token."""

    def is_control(self, id: int) -> bool:
        """Whether this id is that of a control token."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a rendered prompt: one control token's spelling, or plain text."""

    text: str
    control: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of decoded text: one control token's spelling (special), or plain text."""

    text: str
    special: bool
