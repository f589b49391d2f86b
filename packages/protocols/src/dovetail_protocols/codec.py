"""The interface of a codec. Codecs hold no state between requests and do no IO.

Only a `DecodeCache`, which the caller owns, outlives a request.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from dovetail_model import DovetailError, Event, Message, Request
from dovetail_protocols.decode_cache import DecodeCache
from dovetail_protocols.rate_limits import LimitStatus

Headers = Mapping[str, str]
"""Header names in lower case."""

OnEnd = Callable[[bytes, bytes], bytes]
"""Receives the final response object and its frame; returns the bytes to send instead."""


class IdFactory(Protocol):
    """Generates public ids: globally unique, in the API's own style."""

    def __call__(self, prefix: str) -> str: ...


class Clock(Protocol):
    """Returns the time in seconds since the epoch."""

    def __call__(self) -> float: ...


class ErrorResponse(msgspec.Struct, frozen=True):
    """An error before the start of a stream: an HTTP status and a body in the API's own form."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class StreamEncoder(Protocol):
    """Encodes the events of one response as frames of one API.

    Events arrive in the order of the model's output: a `Usage` with the exact input tokens, then
    spans and calls, the final `Usage`, and a `Finish` or `Failure`. Calls carry their public ids,
    and reasoning its seals.
    """

    def encode(self, events: Sequence[Event], choice: int = 0) -> bytes:
        """Encode these events, including the start and the end of the response."""
        ...

    def keep_alive(self, *, in_reasoning: bool = False) -> bytes:
        """Return a frame that keeps clients of this API from timing out.

        `in_reasoning` states that no token has arrived yet and that the first one will continue a
        reasoning span opened by the prompt.
        """
        ...


class StreamErrors(Protocol):
    """Errors that clients of an API handle only inside a stream with status 200.

    If a streaming request fails with one of them before its first frame, the response is a
    complete stream with this error instead of an error status.
    """

    def covers(self, error: DovetailError) -> bool:
        """Return whether the error is one of them."""
        ...

    def decode(self, body: bytes, headers: Headers) -> Request:
        """Decode only the fields that determine the form of the response.

        This is for a request that is rejected before it is decoded, so the cost must not depend on
        the size of its input.
        """
        ...

    def encode(self, request: Request, error: DovetailError, ids: IdFactory, clock: Clock) -> bytes:
        """Return the frames of the complete stream."""
        ...


class StatefulCodec(Protocol):
    """Codec of an API whose responses are stored, so that later requests can continue them."""

    def stream(
        self, request: Request, ids: IdFactory, clock: Clock, on_end: OnEnd | None = None
    ) -> StreamEncoder:
        """Return the encoder of a stream that passes its final response object to `on_end`."""
        ...


class Codec(Protocol):
    """One API in both directions, with its policies.

    name: Name of the API.
    call_id_prefix: Prefix of the ids of tool calls.
    history_field: Field of a request body that contains the messages.
    path_prefix: Prefix of the API's paths. Errors for such a path have the API's form even if
        the route does not exist.
    client_header: Request header that only clients of this API send; None if there is none. It
        determines the form of errors for paths that belong to no API.
    overload_error: Error raised if the server has no capacity for a request. Clients of this API
        retry it.
    draining_error: Its kind is the error kind of a server that is draining; the status is 503 in
        every API.
    unknown_route_error: Error for an unknown path of the API.
    raw_prompts: Whether a prompt is text or token ids instead of messages, so that neither a chat
        template nor a parser is applied.
    models_etag_header: Response header with the entity tag of the model list; None if clients of
        this API do not read one.
    stream_errors: Errors that are sent inside a stream; None if clients handle the status.
    """

    name: str
    call_id_prefix: str
    history_field: str
    path_prefix: str
    client_header: str | None
    overload_error: type[DovetailError]
    draining_error: type[DovetailError]
    unknown_route_error: type[DovetailError]
    raw_prompts: bool
    models_etag_header: str | None

    @property
    def stream_errors(self) -> StreamErrors | None: ...

    @property
    def stateful(self) -> StatefulCodec | None:
        """Return the codec itself if the API stores responses, else None."""
        ...

    def decode(self, body: bytes, headers: Headers, cache: DecodeCache | None = None) -> Request:
        """Decode a request, reusing the parts of the body that are in the cache."""
        ...

    def stream(self, request: Request, ids: IdFactory, clock: Clock) -> StreamEncoder: ...

    def encode_message(
        self, request: Request, messages: Sequence[Message], ids: IdFactory, clock: Clock
    ) -> bytes:
        """Encode a non-streaming response: one message, folded from events, per choice."""
        ...

    def encode_error(self, error: DovetailError) -> ErrorResponse: ...

    def rate_limit_headers(
        self, limits: Iterable[LimitStatus], now: float
    ) -> list[tuple[str, str]]:
        """Return response headers with the state of these limits; `now` is a Unix timestamp."""
        ...
