"""The interface of response backends, the stored response, and its encoding."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec
import zstandard

from dovetail.storage.faults import StoreFaults

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

_OVERHEAD_BYTES = 1000  # of a response without content


class StoredResponse(msgspec.Struct, frozen=True, array_like=True):
    """One response: its request's input and its output. Earlier ones are linked by `previous`.

    `input` and `output` are JSON items, without the brackets of an array; `head` is the response
    object without its output. `created_at` is when it was requested, in seconds since the epoch.
    While it runs in the background, `heartbeat_at` is when its process last reported so.
    """

    tenant: str
    id: str
    created_at: float
    status: ResponseStatus
    head: bytes
    input: bytes
    output: bytes = b""
    previous: str | None = None
    background: bool = False
    heartbeat_at: float = 0.0

    @property
    def running(self) -> bool:
        return self.status in ("queued", "in_progress")

    @property
    def items(self) -> tuple[bytes, bytes]:
        """What it adds to a conversation."""
        return self.input, self.output


def response_size(response: StoredResponse) -> int:
    """Estimated size in bytes."""
    return len(response.head) + len(response.input) + len(response.output) + _OVERHEAD_BYTES


DAY_SECONDS = 86_400.0
DEFAULT_MAX_BYTES = 256 << 20
DEFAULT_MAX_AGE_SECONDS = 30 * DAY_SECONDS

Clock = Callable[[], float]

_MAX_BODY_BYTES = (
    1 << 29
)  # no response is that large; a damaged header must not allocate all memory
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredResponse)


class ResponseStats(msgspec.Struct, frozen=True):
    """What a backend holds."""

    responses: int
    bytes: int


class ResponseBackend(Protocol):
    """Stores responses per tenant, and drops the least recently used."""

    @property
    def faults(self) -> StoreFaults:
        """Its failures. Callers only add losses."""

    async def ping(self) -> None:
        """Check the backend; a failure is logged."""

    async def get(self, tenant: str, id: str) -> StoredResponse | None:
        """The response, or None if this tenant has none of that id."""

    async def put(self, response: StoredResponse) -> None:
        """Store it, in place of an older version."""

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete it. False if there is none."""

    async def get_existing_ids(self, tenant: str, ids: Sequence[str]) -> set[str] | None:
        """Which of these exist. None if that is currently unknown."""

    async def touch(self, tenant: str, ids: Sequence[str]) -> None:
        """Mark these as used: their age starts anew."""

    async def stats(self) -> ResponseStats:
        """Count what is stored. Not for the hot path."""

    async def close(self) -> None:
        """Finish pending work and close. A closed backend is not used again."""


def encode_response(response: StoredResponse) -> bytes:
    """Encode a response as a compressed body."""
    return zstandard.ZstdCompressor().compress(_encoder.encode(response))


def decode_response(body: bytes) -> StoredResponse | None:
    """Decode a body; None if it is damaged or of an unknown version."""
    try:
        if zstandard.frame_content_size(body) > _MAX_BODY_BYTES:
            return None
        packed = zstandard.ZstdDecompressor().decompress(body, max_output_size=_MAX_BODY_BYTES)
        return _decoder.decode(packed)
    except (ValueError, zstandard.ZstdError, msgspec.MsgspecError):
        return None
