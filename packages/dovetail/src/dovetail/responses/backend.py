"""The seam, and what its three forms share."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec
import zstandard

from dovetail.storage.faults import StoreFaults

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


DAY_SECONDS = 86_400.0
DEFAULT_MAX_BYTES = 256 << 20
DEFAULT_MAX_AGE_SECONDS = 30 * DAY_SECONDS

Clock = Callable[[], float]

_MAX_BODY_BYTES = 1 << 29  # no response comes near; a damaged header must not ask for all memory
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredResponse)


class ResponseStats(msgspec.Struct, frozen=True):
    """What a store holds now."""

    responses: int
    bytes: int


class ResponseBackend(Protocol):
    """Keeps responses, each for its tenant alone, and forgets those not used for longest."""

    @property
    def faults(self) -> StoreFaults:
        """What it could not do. Who asks it adds only what is lost for that."""

    async def ping(self) -> None:
        """Have it told in the log, where it is not there."""

    async def get(self, tenant: str, id: str) -> StoredResponse | None:
        """The response, or None if this tenant has none of that id."""

    async def put(self, response: StoredResponse) -> None:
        """Keep it, in place of an older form of it."""

    async def delete(self, tenant: str, id: str) -> bool:
        """Forget it. False: there was none."""

    async def get_existing_ids(self, tenant: str, ids: Sequence[str]) -> set[str] | None:
        """Which of these are there. None where that cannot be told at the moment."""

    async def touch(self, tenant: str, ids: Sequence[str]) -> None:
        """These were used again: their age begins anew."""

    async def stats(self) -> ResponseStats:
        """How much is held. Not for the hot path."""

    async def close(self) -> None:
        """Finish what was begun and let go. A closed store is not used again."""


def encode_response(response: StoredResponse) -> bytes:
    """The response as one body."""
    return zstandard.ZstdCompressor().compress(_encoder.encode(response))


def decode_response(body: bytes) -> StoredResponse | None:
    """The response of a body, or None if it is damaged or of a version that we do not know."""
    try:
        if zstandard.frame_content_size(body) > _MAX_BODY_BYTES:
            return None
        packed = zstandard.ZstdDecompressor().decompress(body, max_output_size=_MAX_BODY_BYTES)
        return _decoder.decode(packed)
    except (ValueError, zstandard.ZstdError, msgspec.MsgspecError):
        return None
