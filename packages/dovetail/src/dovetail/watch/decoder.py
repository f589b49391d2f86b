"""An exchange understood: the request that was decoded, and the answer as events with their times.

The answer is read by what the API itself says. Where a stream broke or the server refused, that is
part of the answer, too.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from dovetail.watch.exchange import Exchange
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
    Memory,
    MessagesReader,
    ResponsesReader,
    SseReader,
)

_TELLS_CACHED = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)"\s*:\s*\d')
_Timed = Iterator[tuple[float, list[Event]]]


class Reader(Protocol):
    """What reads the answers of one API."""

    def feed(self, chunk: bytes) -> list[Event]: ...

    def finish(self) -> list[Event]: ...

    def whole(self, body: bytes) -> list[Event]: ...


@dataclass(frozen=True)
class Answer:
    """What the server answered.

    `usage` is what it said of tokens, if it did, and `cached` how many it had, if it tells.
    `first` is when the first word came, `complete` when the last bytes of each call came: seconds
    since the exchange began. `ids` are the generated tokens, and `prompt_ids` those of the prompt,
    where the server gives them.
    """

    message: Message
    usage: Usage | None
    cached: int | None
    first: float | None
    complete: tuple[float, ...]
    ids: tuple[int, ...] | None = None
    prompt_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Heard:
    """An exchange that was understood."""

    exchange: Exchange
    codec: Codec
    request: Request
    answer: Answer


def understand(exchange: Exchange, memory: Memory | None = None) -> Heard:
    """The exchange, decoded. Raises `InvalidRequest` where the request is none of its API."""
    codec = exchange.codec
    assert codec is not None
    request = codec.decode(exchange.request, exchange.request_headers, memory)
    return Heard(exchange, codec, request, read_answer(exchange, codec))


def read_answer(exchange: Exchange, codec: Codec) -> Answer:
    """The answer as a message, with the times at which its parts came."""
    folding, times = Fold(), _Times()
    for at, events in _events(exchange, codec):
        for event in events:
            folding.add(event)
            times.note(at, event)
    tells = _TELLS_CACHED.search(exchange.answer) is not None
    ids, prompt_ids = _token_ids(exchange)
    return Answer(
        message=folding.message(),
        usage=times.usage,
        cached=times.usage.cached_tokens if times.usage is not None and tells else None,
        first=times.first,
        complete=tuple(times.complete[index] for index in sorted(times.complete)),
        ids=ids,
        prompt_ids=prompt_ids,
    )


class _Times:
    """When what came."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.first: float | None = None
        self.complete: dict[int, float] = {}
        self._last: dict[int, float] = {}

    def note(self, at: float, event: Event) -> None:
        match event:
            case Usage() if event.input_tokens or event.output_tokens:
                self.usage = event
            case CallOpen(index=index) | CallArgs(index=index):
                self._last[index] = at
            case CallClose(index=index):
                self.complete[index] = self._last.get(index, at)
        if self.first is None and isinstance(event, TextDelta | ReasoningDelta | CallOpen):
            self.first = at


def _events(exchange: Exchange, codec: Codec) -> _Timed:
    if exchange.status >= 400 or not exchange.answer:
        yield exchange.ended, [_refusal(exchange)]
    elif exchange.streamed:
        yield from _stream(exchange, _READERS[codec.name]())
    else:
        yield exchange.ended, _READERS[codec.name]().whole(exchange.answer)


def _stream(exchange: Exchange, reader: Reader) -> _Timed:
    done = 0
    for at, size in exchange.marks or ((exchange.ended, len(exchange.answer)),):
        yield at, reader.feed(exchange.answer[done:size])
        done = size
    yield exchange.ended, reader.finish()


def _refusal(exchange: Exchange) -> Failure:
    if not exchange.status:
        return Failure("engine_unavailable", "There was no answer.")
    return Failure("engine", f"HTTP {exchange.status}")


def _token_ids(exchange: Exchange) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The tokens of answer and prompt, where the client asked a vLLM for them."""
    if b'"return_token_ids"' not in exchange.request or b'"token_ids"' not in exchange.answer:
        return None, None
    found: list[int] = []
    prompt: tuple[int, ...] | None = None
    for value in _values(exchange):
        if prompt is None and _are_ids(value.get("prompt_token_ids")):
            prompt = tuple(value["prompt_token_ids"])
        for choice in value.get("choices") or ():
            ids = choice.get("token_ids")
            if not choice.get("index") and _are_ids(ids):
                found += ids
    return (tuple(found) or None), prompt


def _values(exchange: Exchange) -> Iterator[dict[str, Any]]:
    datas: Sequence[str | bytes] = [exchange.answer]
    if exchange.streamed:
        datas = [event.data for event in SseReader().feed(exchange.answer)]
    for data in datas:
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeError):
            continue
        if isinstance(value, dict):
            yield value


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(id, int) for id in value)


_READERS: dict[str, Callable[[], Reader]] = {
    CHAT.name: ChatReader,
    MESSAGES.name: MessagesReader,
    RESPONSES.name: ResponsesReader,
}
