"""A response as it is kept."""

from typing import Literal

import msgspec

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

_OVERHEAD_BYTES = 1000  # bytes that one takes whatever is in it


class StoredResponse(msgspec.Struct, frozen=True, array_like=True):
    """What one request brought and what was answered. What came before is behind `previous`.

    `input` and `output` are JSON items, as the inside of an array; `head` is the response object
    without its output. `asked` is when it was asked for, in seconds since the epoch. While it is
    worked on in the background, `seen` is when its process last said so.
    """

    tenant: str
    id: str
    asked: float
    status: ResponseStatus
    head: bytes
    input: bytes
    output: bytes = b""
    previous: str | None = None
    background: bool = False
    seen: float = 0.0

    @property
    def running(self) -> bool:
        return self.status in ("queued", "in_progress")

    @property
    def items(self) -> tuple[bytes, bytes]:
        """What it adds to a conversation."""
        return self.input, self.output


def response_size(response: StoredResponse) -> int:
    """About how many bytes it takes."""
    return len(response.head) + len(response.input) + len(response.output) + _OVERHEAD_BYTES
