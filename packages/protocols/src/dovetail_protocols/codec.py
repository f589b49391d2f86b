"""The interface of a codec. Codecs hold no state between requests and do no IO.

The one thing that outlives a request is a `DecodeCache`, which the caller owns.
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
"""Gets the final response object and the frame that carries it; returns what to send instead."""


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

    def keep_alive(self, *, in_reasoning: bool = False) -> bytes:
        """A frame that keeps clients of this API from timing out.

        `in_reasoning`: no token has come yet, and the first one continues a reasoning span that
        the prompt has opened.
        """
        ...


class StreamErrors(Protocol):
    """Errors that clients of an API understand only inside a stream with status 200.

    A streaming request that fails with one of them before its first frame gets a whole stream of
    this error instead of an error status.
    """

    def covers(self, error: DovetailError) -> bool:
        """Whether the error is one of them."""
        ...

    def decode(self, body: bytes, headers: Headers) -> Request:
        """Decode only what determines the form of the response.

        Used for a request that is rejected before it is decoded, so the cost must not depend on the
        size of its input.
        """
        ...

    def encode(self, request: Request, error: DovetailError, ids: IdFactory, clock: Clock) -> bytes:
        """The frames of the whole stream."""
        ...


class StatefulCodec(Protocol):
    """Codec of an API whose responses are stored, so that later requests can continue them."""

    def stream(
        self, request: Request, ids: IdFactory, clock: Clock, on_end: OnEnd | None = None
    ) -> StreamEncoder:
        """The encoder of a stream whose final response object is handed to `on_end`."""
        ...


class Codec(Protocol):
    """One API, in both directions, and its policy in everything in which APIs differ.

    name: Name of the API.
    call_id_prefix: What the ids of tool calls begin with.
    path_prefix: What the paths of the API begin with. Errors for such a path have the API's form,
        also where there is no such route.
    client_header: Request header that only clients of this API send, None if there is none. It
        determines the form of errors for paths that belong to no API.
    overload_error: What is raised if the server has no capacity for a request: an error that
        clients of this API retry.
    draining_error: Gives the error kind of a server that is about to stop; the status is 503 in
        every API.
    unknown_route_error: What an unknown path of the API is answered with.
    raw_prompts: Whether a prompt is text or token ids instead of messages, so that neither a chat
        template nor a parser is applied.
    models_etag_header: Response header with the entity tag of the model list, None if clients of
        this API do not look for one.
    stream_errors: Errors that are sent inside a stream, None if clients understand the status.
    """

    name: str
    call_id_prefix: str
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
        """The codec itself if the API stores responses, else None."""
        ...

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

    def rate_limit_headers(
        self, limits: Iterable[LimitStatus], now: float
    ) -> list[tuple[str, str]]:
        """Response headers with the state of these limits; `now` is in seconds since the epoch."""
        ...
