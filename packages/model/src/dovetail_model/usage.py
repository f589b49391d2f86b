"""Token accounting of one generation."""

from typing import ClassVar, Literal

import msgspec


class Usage(msgspec.Struct, frozen=True, tag="usage", gc=False):
    """Cumulative token counts. `cached_tokens` is the reused part of the `input_tokens`.

    With server tools, a response consists of several generations, whose counts are added up.
    """

    type: ClassVar[Literal["usage"]] = "usage"
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    web_searches: int = 0
    web_fetches: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*(getattr(self, n) + getattr(other, n) for n in self.__struct_fields__))
