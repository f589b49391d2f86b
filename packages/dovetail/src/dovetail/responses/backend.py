"""The interface of response backends, the stored response, and its encoding."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec
import zstandard

from dovetail.storage.faults import StoreFaults

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

_OVERHEAD_BYTES = 1000  # per response, in addition to its content


class StoredResponse(msgspec.Struct, frozen=True, array_like=True):
    """One response: input, output, and the id of the response that it continues.

    `head`: the response object as JSON, without its output.
    `input`, `output`: JSON items, without the brackets of an array.
    `previous`: the id of the previous response.
    `created_at`: the time of the request, in seconds since the epoch.
    `heartbeat_at`: the last time that its process reported a background response as running.
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
        """The items that the response adds to a conversation: input and output."""
        return self.input, self.output


def response_size(response: StoredResponse) -> int:
    """Estimate the size of a response in bytes."""
    return len(response.head) + len(response.input) + len(response.output) + _OVERHEAD_BYTES


DAY_SECONDS = 86_400.0
DEFAULT_MAX_BYTES = 256 << 20
DEFAULT_MAX_AGE_SECONDS = 30 * DAY_SECONDS

Clock = Callable[[], float]

# Larger than any response. A damaged header must not cause a huge allocation.
_MAX_BODY_BYTES = 1 << 29
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredResponse)


class ResponseStats(msgspec.Struct, frozen=True):
    """The number and total size of the stored responses."""

    responses: int
    bytes: int


class ResponseBackend(Protocol):
    """The interface of response backends: store responses per tenant, evict by last use."""

    @property
    def faults(self) -> StoreFaults:
        """The failures of the backend. Callers record only lost writes."""

    async def ping(self) -> None:
        """Check the backend and log a failure."""

    async def get(self, tenant: str, id: str) -> StoredResponse | None:
        """Return the response, or None if the tenant has no response with this id."""

    async def put(self, response: StoredResponse) -> None:
        """Store a response or replace its older version."""

    async def swap(self, old: StoredResponse, new: StoredResponse) -> bool:
        """Replace a response, unless the stored one is no longer `old`. Returns whether it was.

        Raises StoreError if the backend is unavailable.
        """

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete a response. Returns False if it does not exist."""

    async def get_existing_ids(self, tenant: str, ids: Sequence[str]) -> set[str] | None:
        """Return the ids that exist, or None if the backend is unavailable."""

    async def touch(self, tenant: str, ids: Sequence[str]) -> None:
        """Mark responses as used: this restarts their age."""

    async def stats(self) -> ResponseStats:
        """Count the stored responses. Too slow for the hot path."""

    async def close(self) -> None:
        """Finish pending operations and close the backend, which cannot be used afterwards."""


def encode_response(response: StoredResponse) -> bytes:
    """Encode a response as a compressed body."""
    return zstandard.ZstdCompressor().compress(_encoder.encode(response))


def decode_response(body: bytes) -> StoredResponse | None:
    """Decode a body. Returns None if it is damaged or has an unknown version."""
    try:
        if zstandard.frame_content_size(body) > _MAX_BODY_BYTES:
            return None
        packed = zstandard.ZstdDecompressor().decompress(body, max_output_size=_MAX_BODY_BYTES)
        return _decoder.decode(packed)
    except (ValueError, zstandard.ZstdError, msgspec.MsgspecError):
        return None
