"""Decode a Messages stream, or a complete message, of another server into events.

Blocks mark their own end. If the input of a call is not complete JSON when its block stops, the
call was truncated and stays open. Blocks of types that the data model does not have are skipped.
"""

from typing import Any, Literal

import msgspec

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Diagnostic,
    Event,
    Failure,
    Finish,
    FinishReason,
    ReasoningDelta,
    SpanEnd,
    TextDelta,
    Usage,
)
from dovetail_protocols.sse import ServerEvent, SseReader

_FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "stop_sequence": "stop_sequence",
    "model_context_window_exceeded": "context_window",
    "refusal": "refusal",
}
_KINDS = {
    "invalid_request_error": "invalid_request",
    "authentication_error": "unauthenticated",
    "permission_error": "forbidden",
    "not_found_error": "not_found",
    "request_too_large": "too_large",
    "rate_limit_error": "rate_limited",
    "timeout_error": "engine_timeout",
    "overloaded_error": "overloaded",
}
_OVERFLOW = "prompt is too long"
_BROKEN = Failure(
    "engine_unavailable", "The upstream server closed the stream before the end of the response."
)

Json = dict[str, Any]


class BlockIn(msgspec.Struct, frozen=True):
    """A content block, complete or as it starts."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None


class DeltaIn(msgspec.Struct, frozen=True):
    """A fragment of a block; in a `message_delta`, the reason for the end of the message."""

    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class OutputDetailsIn(msgspec.Struct, frozen=True):
    thinking_tokens: int | None = None


class UsageIn(msgspec.Struct, frozen=True):
    """Token counts. The three input counts add up to the prompt; absent counts are unchanged."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: OutputDetailsIn | None = None


class ResponseMessageIn(msgspec.Struct, frozen=True):
    """A message, complete or as it starts."""

    content: list[BlockIn] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: UsageIn | None = None
    error: Json | None = None


class StreamEventIn(msgspec.Struct, frozen=True):
    type: str = ""
    message: ResponseMessageIn | None = None
    content_block: BlockIn | None = None
    delta: DeltaIn | None = None
    usage: UsageIn | None = None
    error: Json | None = None


_decode = msgspec.json.Decoder(StreamEventIn).decode
_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class MessagesReader:
    """Reads one stream, in chunks of any size."""

    __slots__ = ("_block", "_calls", "_counts", "_finish", "_out", "_over", "_sse")

    def __init__(self) -> None:
        self._sse = SseReader()
        self._out: list[Event] = []
        self._block: _Block | None = None
        self._calls = 0
        self._counts = UsageIn()
        self._finish: Finish | None = None
        self._over = False

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that these bytes complete."""
        for event in self._sse.feed(chunk):
            if not self._over:
                self._take(event)
        return self._take_events()

    def finish(self) -> list[Event]:
        """Return the remaining events after the connection has closed."""
        if not self._over:
            self._over = True
            self._out.append(self._finish or _BROKEN)
        return self._take_events()

    def whole(self, body: bytes) -> list[Event]:
        """Decode a non-streaming response."""
        try:
            message = msgspec.json.decode(body, type=ResponseMessageIn)
        except _FAULTS:
            return [Failure("engine", "The upstream server returned an invalid message.")]
        if message.error is not None:
            return [_failure(message.error)]
        for block in message.content or ():
            self._start(block)
            self._stop()
        self._add_usage(message.usage)
        self._end(message.stop_reason, message.stop_sequence)
        return [*self._take_events(), self._finish or _BROKEN]

    def _take_events(self) -> list[Event]:
        out, self._out = self._out, []
        return out

    def _take(self, event: ServerEvent) -> None:
        if not event.data:
            return
        try:
            read = _decode(event.data)
        except _FAULTS:
            self._out.append(Diagnostic("malformed_chunk"))
            return
        match read.type:
            case "message_start" if read.message is not None:
                self._add_usage(read.message.usage)
            case "content_block_start" if read.content_block is not None:
                self._stop()
                self._start(read.content_block)
            case "content_block_delta" if read.delta is not None and self._block is not None:
                self._out += self._block.take(read.delta)
            case "content_block_stop":
                self._stop()
            case "message_delta":
                self._message_delta(read)
            case "message_stop":
                self._over = True
                self._out.append(self._finish or Finish("tool_calls" if self._calls else "stop"))
            case "error":
                self._over = True
                self._out.append(_failure(read.error or {}))

    def _message_delta(self, read: StreamEventIn) -> None:
        self._stop()
        self._add_usage(read.usage)
        if read.delta is not None:
            self._end(read.delta.stop_reason, read.delta.stop_sequence)

    def _end(self, reason: str | None, stop: str | None) -> None:
        if reason is not None:
            found = _FINISH_REASONS.get(reason, "stop")
            self._finish = Finish(found, stop if found == "stop_sequence" else None)

    def _start(self, block: BlockIn) -> None:
        match block.type:
            case "text":
                self._block = _Span("text")
            case "thinking" | "redacted_thinking":
                self._block = _Span("reasoning", block.signature or block.data)
            case "tool_use":
                self._block = _Call(self._calls, block)
                self._calls += 1
            case _:
                self._block = None
        if self._block is not None:
            self._out += self._block.start(block)

    def _stop(self) -> None:
        if self._block is not None:
            self._out += self._block.stop()
        self._block = None

    def _add_usage(self, usage: UsageIn | None) -> None:
        if usage is None:
            return
        given = {f: v for f in UsageIn.__struct_fields__ if (v := getattr(usage, f)) is not None}
        if not given:
            return
        self._counts = msgspec.structs.replace(self._counts, **given)
        self._out.append(_usage(self._counts))


class _Span:
    """Text or reasoning. An empty span yields no events, unless it is sealed reasoning."""

    __slots__ = ("_kind", "_open", "_seal")

    def __init__(self, kind: Literal["text", "reasoning"], seal: str | None = None) -> None:
        self._kind = kind
        self._seal = seal or None
        self._open = False

    def start(self, block: BlockIn) -> list[Event]:
        return self.take(DeltaIn(text=block.text, thinking=block.thinking))

    def take(self, delta: DeltaIn) -> list[Event]:
        self._seal = delta.signature or self._seal
        text = delta.text if self._kind == "text" else delta.thinking
        if not text:
            return []
        self._open = True
        return [TextDelta(text) if self._kind == "text" else ReasoningDelta(text)]

    def stop(self) -> list[Event]:
        opened: list[Event] = []
        if not self._open:
            if self._seal is None:
                return []
            opened = [ReasoningDelta("")]  # reasoning whose text the server does not return
        return [*opened, SpanEnd(self._kind, seal=self._seal)]


class _Call:
    """A call. Its input is streamed; a few servers put it into the start of the block."""

    __slots__ = ("_index", "_input", "_pieces")

    def __init__(self, index: int, block: BlockIn) -> None:
        self._index = index
        self._input = block.input
        self._pieces: list[str] = []

    def start(self, block: BlockIn) -> list[Event]:
        return [CallOpen(self._index, block.name or "", block.id)]

    def take(self, delta: DeltaIn) -> list[Event]:
        if not delta.partial_json:
            return []
        self._pieces.append(delta.partial_json)
        return [CallArgs(self._index, delta.partial_json)]

    def stop(self) -> list[Event]:
        events: list[Event] = []
        if not self._pieces and self._input:
            self._pieces = [msgspec.json.encode(self._input).decode()]
            events.append(CallArgs(self._index, self._pieces[0]))
        return [*events, CallClose(self._index)] if self._is_whole() else events

    def _is_whole(self) -> bool:
        try:
            msgspec.json.decode("".join(self._pieces) or "{}")
        except _FAULTS:
            return False
        return True


_Block = _Span | _Call


def _usage(counts: UsageIn) -> Usage:
    cached, details = counts.cache_read_input_tokens or 0, counts.output_tokens_details
    return Usage(
        input_tokens=(counts.input_tokens or 0)
        + (counts.cache_creation_input_tokens or 0)
        + cached,
        output_tokens=counts.output_tokens or 0,
        cached_tokens=cached,
        reasoning_tokens=(details.thinking_tokens or 0) if details else 0,
    )


def _failure(error: Json) -> Failure:
    kind, message = error.get("type"), error.get("message")
    text = message if isinstance(message, str) else "The upstream server reported an error."
    if text.startswith(_OVERFLOW):
        return Failure("context_overflow", text)
    return Failure(_KINDS.get(kind, "engine") if isinstance(kind, str) else "engine", text)
