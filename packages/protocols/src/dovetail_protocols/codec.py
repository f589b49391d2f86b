"""The interface of a codec. Codecs hold no state between requests and do no IO.

The one thing that outlives a request is a `DecodeCache`, which the caller owns.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from dovetail_model import DovetailError, Event, Message, Request
from dovetail_protocols.decode_cache import DecodeCache

Headers = Mapping[str, str]
"""Header names in lower case."""


class IdFactory(Protocol):
    """Generate public ids: globally unique, in the API's own style."""

    def __call__(self, prefix: str) -> str: ...


class Clock(Protocol):
    """Seconds since the epoch."""

    def __call__(self) -> float: ...


class ErrorResponse(msgspec.Struct, frozen=True):
    """An error before any stream began: an HTTP status and a body in the API's own form."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class StreamEncoder(Protocol):
    """Encode the events of one response as the frames of one API.

    Events come in the order of the model: a `Usage` with the true input tokens first, spans and
    calls, the final `Usage`, and a `Finish` or a `Failure` at the end. Calls carry their public
    ids, reasoning its seals.
    """

    def encode(self, events: Sequence[Event], choice: int = 0) -> bytes:
        """Encode these events, and the start and end of the response where they fall."""
        ...

    def keep_alive(self) -> bytes:
        """A frame that keeps clients of this API from timing out."""
        ...


class Codec(Protocol):
    """One API, in both directions."""

    name: str
    call_id_prefix: str

    def decode(self, body: bytes, headers: Headers, cache: DecodeCache | None = None) -> Request:
        """Decode a request. What the cache holds of the body is not decoded again."""
        ...

    def stream(self, request: Request, ids: IdFactory, clock: Clock) -> StreamEncoder: ...

    def encode_message(
        self, request: Request, messages: Sequence[Message], ids: IdFactory, clock: Clock
    ) -> bytes:
        """Encode a response that is not streamed: one message, folded from events, per choice."""
        ...

    def encode_error(self, error: DovetailError) -> ErrorResponse: ...
