"""Decode exchanges: the request, and the response as events with their times.

Failed streams and rejected requests become part of the decoded response.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from dovetail.watch.exchange import CapturedExchange
from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Event,
    Failure,
    Fold,
    Message,
    ReasoningDelta,
    Request,
    TextDelta,
    Usage,
)
from dovetail_protocols import (
    CHAT,
    MESSAGES,
    RESPONSES,
    ChatReader,
    Codec,
    DecodeCache,
    MessagesReader,
    ResponsesReader,
    SseReader,
)

_CACHED_TOKENS_FIELD = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)"\s*:\s*\d')
_TimedEvents = Iterator[tuple[float, list[Event]]]


class ResponseReader(Protocol):
    """Parses the responses of one API."""

    def feed(self, chunk: bytes) -> list[Event]: ...

    def finish(self) -> list[Event]: ...

    def whole(self, body: bytes) -> list[Event]: ...


@dataclass(frozen=True)
class ObservedResponse:
    """A decoded response.

    `usage` and `cached_tokens` are the server's counts, if it reports them. Times are seconds since
    the exchange began: `first_token`, and `call_times` of the last bytes of each call. `output_ids`
    and `prompt_ids` are token ids, if the server returns them.
    """

    message: Message
    usage: Usage | None
    cached_tokens: int | None
    first_token: float | None
    call_times: tuple[float, ...]
    output_ids: tuple[int, ...] | None = None
    prompt_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class DecodedExchange:
    """A decoded exchange."""

    exchange: CapturedExchange
    codec: Codec
    request: Request
    response: ObservedResponse


def decode_exchange(
    exchange: CapturedExchange, memory: DecodeCache | None = None
) -> DecodedExchange:
    """Decode an exchange. Raises `InvalidRequest` if the request does not match its API."""
    codec = exchange.codec
    assert codec is not None
    request = codec.decode(exchange.request, exchange.request_headers, memory)
    return DecodedExchange(exchange, codec, request, decode_response(exchange, codec))


def decode_response(exchange: CapturedExchange, codec: Codec) -> ObservedResponse:
    """Decode a response, with the times of its parts."""
    fold, times = Fold(), _EventTimes()
    for at, events in _read_events(exchange, codec):
        for event in events:
            fold.add(event)
            times.add(at, event)
    reports_cached = _CACHED_TOKENS_FIELD.search(exchange.response) is not None
    ids, prompt_ids = _read_token_ids(exchange)
    return ObservedResponse(
        message=fold.message(),
        usage=times.usage,
        cached_tokens=times.usage.cached_tokens
        if times.usage is not None and reports_cached
        else None,
        first_token=times.first_token,
        call_times=tuple(times.call_times[index] for index in sorted(times.call_times)),
        output_ids=ids,
        prompt_ids=prompt_ids,
    )


class _EventTimes:
    """Times of the first output and of the calls."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.first_token: float | None = None
        self.call_times: dict[int, float] = {}
        self._last: dict[int, float] = {}

    def add(self, at: float, event: Event) -> None:
        match event:
            case Usage() if event.input_tokens or event.output_tokens:
                self.usage = event
            case CallOpen(index=index) | CallArgs(index=index):
                self._last[index] = at
            case CallClose(index=index):
                self.call_times[index] = self._last.get(index, at)
        if self.first_token is None and isinstance(event, TextDelta | ReasoningDelta | CallOpen):
            self.first_token = at


def _read_events(exchange: CapturedExchange, codec: Codec) -> _TimedEvents:
    if exchange.status >= 400 or not exchange.response:
        yield exchange.ended, [_to_failure(exchange)]
    elif exchange.is_streamed:
        yield from _read_stream(exchange, _READERS[codec.name]())
    else:
        yield exchange.ended, _READERS[codec.name]().whole(exchange.response)


def _read_stream(exchange: CapturedExchange, reader: ResponseReader) -> _TimedEvents:
    start = 0
    for at, end in exchange.marks or ((exchange.ended, len(exchange.response)),):
        yield at, reader.feed(exchange.response[start:end])
        start = end
    yield exchange.ended, reader.finish()


def _to_failure(exchange: CapturedExchange) -> Failure:
    if not exchange.status:
        return Failure("engine_unavailable", "The server did not respond.")
    return Failure("engine", f"HTTP {exchange.status}")


def _read_token_ids(
    exchange: CapturedExchange,
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Return the token ids of response and prompt, if the client requested them from vLLM."""
    if b'"return_token_ids"' not in exchange.request or b'"token_ids"' not in exchange.response:
        return None, None
    output: list[int] = []
    prompt: tuple[int, ...] | None = None
    for value in _json_objects(exchange):
        if prompt is None and _is_id_list(value.get("prompt_token_ids")):
            prompt = tuple(value["prompt_token_ids"])
        for choice in value.get("choices") or ():
            ids = choice.get("token_ids")
            if not choice.get("index") and _is_id_list(ids):
                output += ids
    return (tuple(output) or None), prompt


def _json_objects(exchange: CapturedExchange) -> Iterator[dict[str, Any]]:
    documents: Sequence[str | bytes] = [exchange.response]
    if exchange.is_streamed:
        documents = [event.data for event in SseReader().feed(exchange.response)]
    for document in documents:
        try:
            value = msgspec.json.decode(document)
        except (msgspec.DecodeError, UnicodeError):
            continue
        if isinstance(value, dict):
            yield value


def _is_id_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(id, int) for id in value)


_READERS: dict[str, Callable[[], ResponseReader]] = {
    CHAT.name: ChatReader,
    MESSAGES.name: MessagesReader,
    RESPONSES.name: ResponsesReader,
}
