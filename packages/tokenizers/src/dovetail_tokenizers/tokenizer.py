"""The interface of tokenizers.

A control token is a token that gives a prompt its structure (`<|im_start|>`, `<think>`): every
added token marked special, and those that the caller names because a chat template or a parser
relies on them. All other tokens are plain.

`decode` joins the tokens' texts and strips nothing. SentencePiece tokenizers add a space before the
first word of a text; since ids nearly always continue a prompt, that space is part of the text, and
removing it would join two words.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


class Tokenizer(Protocol):
    """Converts text to ids and back."""

    @property
    def controls(self) -> Mapping[str, int]:
        """The id of every control token by its spelling."""

    @property
    def size(self) -> int:
        """The largest id plus one."""

    def encode(self, text: str) -> list[int]:
        """Encode a text in which the spelling of an added token means that token."""

    def encode_plain(self, text: str, *, first: bool = False) -> list[int]:
        """Encode a text without producing added tokens, special or not, except white space.

        `first` states that the text is at the beginning of the prompt, which matters for tokenizers
        that add a space before the first word.
        """

    def pack_plain(self, text: str, *, first: bool = False) -> "array[int]":
        """Like `encode_plain`, packed into an array that may be cached and must not be modified."""

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids, with control tokens spelled out and invalid UTF-8 as U+FFFD."""

    def bytes_of(self, id: int) -> bytes:
        """Return the bytes of one token; empty if the id is not in the vocabulary."""

    def is_control(self, id: int) -> bool:
        """Return whether the id belongs to a control token."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a rendered prompt: the spelling of one control token, or plain text."""

    text: str
    control: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of decoded text: the spelling of one control token (special), or plain text."""

    text: str
    special: bool
