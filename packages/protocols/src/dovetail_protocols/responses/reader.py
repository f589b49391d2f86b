"""A Responses stream back into events: what an upstream server sent, or a recording.

Items say themselves where they end, so a call may run as soon as its item is done. Servers differ
in how much they stream: what no delta told is told at an item's end, or at that of the response.
A stream ends with `response.completed`, `incomplete` or `failed`; without one it broke.
"""

from collections.abc import Callable, Mapping
from typing import Any

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
    Logprobs,
    ReasoningDelta,
    SpanEnd,
    TextDelta,
)
from dovetail_protocols.openai_error import kind_of
from dovetail_protocols.responses.frame import Ending, Frame, FrameItem
from dovetail_protocols.responses.sequencer import InTurn
from dovetail_protocols.sse import ServerEvent, SseReader

_decode = msgspec.json.Decoder(Frame).decode
_decode_whole = msgspec.json.Decoder(Ending).decode

_KINDS = ("message", "reasoning", "function_call", "custom_tool_call")
_INCOMPLETE: dict[str, FinishReason] = {"content_filter": "refusal"}
_CODES = {"invalid_prompt": "invalid_request", "insufficient_quota": "rate_limited"}
"""Codes of a failed response that the API's other answers do not have."""


class ResponsesReader:
    """Reads one response, in any pieces."""

    __slots__ = ("_calls", "_in_turn", "_items", "_out", "_over", "_span", "_sse")

    def __init__(self) -> None:
        self._sse = SseReader()
        self._out: list[Event] = []
        self._in_turn = InTurn()
        self._items: list[_Item] = []
        self._span: _Item | None = None  # the text or thought that is open
        self._calls = 0
        self._over = False

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that these bytes complete."""
        for event in self._sse.feed(chunk):
            if not self._over:
                self._take(event)
        return self._give()

    def whole(self, body: bytes) -> list[Event]:
        """The events of an answer that did not come as a stream."""
        try:
            self._end(_decode_whole(body))
        except (msgspec.DecodeError, RecursionError):
            self._fail({"message": "The server's answer is no response."})
        return self._give()

    def finish(self) -> list[Event]:
        """The connection has ended: the events that are left."""
        if not self._over:
            self._over = True
            self._out.append(Failure("engine_unavailable", "The stream ended before its answer."))
        return self._give()

    def _give(self) -> list[Event]:
        out, self._out = self._out, []
        return self._in_turn.order(out)

    def _take(self, event: ServerEvent) -> None:
        if not event.data or event.data.startswith("[DONE]"):
            return
        try:
            frame = _decode(event.data)
        except (msgspec.DecodeError, RecursionError):
            self._out.append(Diagnostic("malformed_chunk"))
            return
        take = _ON.get(frame.type or event.event)
        if take is not None:
            take(self, frame)

    def _added(self, frame: Frame) -> None:
        if frame.item is not None:
            self._item(frame.item, frame.output_index)

    def _done(self, frame: Frame) -> None:
        if frame.item is not None:
            self._close(self._item(frame.item, frame.output_index), frame.item)

    def _text(self, frame: Frame) -> None:
        item = self._place(frame, "message")
        self._open_span(item)
        if frame.logprobs:
            self._out.append(Logprobs(tuple(token.told() for token in frame.logprobs)))
        self._tell(item, frame.delta or "")

    def _thought(self, frame: Frame) -> None:
        """The thought itself, or its summary where a server keeps the thought to itself."""
        item = self._place(frame, "reasoning")
        summary = frame.type.startswith("response.reasoning_summary")
        if item.told and item.summary != summary:
            return
        item.summary = summary
        self._open_span(item)
        if summary and item.told and frame.summary_index != item.part:
            self._tell(item, "\n\n")
        item.part = frame.summary_index
        self._tell(item, frame.delta or "")

    def _arguments(self, frame: Frame) -> None:
        item = self._known(frame.item_id, frame.output_index)
        if item is None and frame.item_id is None and frame.output_index is None:
            item = self._items[-1] if self._items else None
        if item is None or item.number is None or item.closed:
            self._out.append(Diagnostic("late_arguments"))
        else:
            self._tell(item, frame.delta or "")

    def _completed(self, frame: Frame) -> None:
        self._end(frame.response or Ending(status=frame.type.removeprefix("response.")))

    def _failed(self, frame: Frame) -> None:
        told = frame.response.error if frame.response is not None else frame.error
        if told is None:
            told = {"code": frame.code, "message": frame.message, "param": frame.param}
        self._fail(told)

    def _place(self, frame: Frame, kind: str) -> "_Item":
        """The item of a delta. Some servers never say that they added it."""
        return self._item(FrameItem(type=kind, id=frame.item_id), frame.output_index)

    def _item(self, told: FrameItem, place: int | None) -> "_Item":
        """The item that is meant; a new one where none is."""
        found = self._known(told.id, place)
        last = self._items[-1] if self._items else None
        nameless = place is None and (told.id is None or (last is not None and last.id is None))
        if found is None and nameless and last is not None and not last.closed:
            found = last if last.kind == told.type else None
        if found is None:
            found = _Item(told.type, told.id, place)
            self._items.append(found)
            if told.is_call:
                self._open_call(found, told)
        return found

    def _known(self, id: str | None, place: int | None) -> "_Item | None":
        """The item of that place or id. Servers have both of them, one, or none."""
        for item in reversed(self._items):
            if place is not None and item.place == place:
                return item
            if id is not None and item.id == id and (place is None or item.place is None):
                return item
        return None

    def _streamed(self, told: FrameItem, at: int) -> "_Item | None":
        """What was streamed of an item of the whole output, with neither a place nor an id."""
        found = self._items[at] if at < len(self._items) else None
        if found is None or found.place is not None or found.id is not None:
            return None
        return found if found.kind == told.type else None

    def _open_call(self, item: "_Item", told: FrameItem) -> None:
        self._close_span()
        item.number, self._calls = self._calls, self._calls + 1
        custom = told.type == "custom_tool_call"
        id = told.call_id or told.id
        self._out.append(CallOpen(item.number, told.name or "", id, told.namespace, custom=custom))

    def _open_span(self, item: "_Item") -> None:
        if self._span is not item:
            self._close_span()
            self._span = item

    def _tell(self, item: "_Item", text: str) -> None:
        """More of an item."""
        if not text:
            return
        item.told = True
        if item.number is not None:
            self._out.append(CallArgs(item.number, text))
        elif item.kind == "reasoning":
            self._out.append(ReasoningDelta(text))
        else:
            self._out.append(TextDelta(text))

    def _close(self, item: "_Item", told: FrameItem) -> None:
        """An item is done; what no delta told of it is told now."""
        if item.closed or item.kind not in _KINDS:
            return
        if not item.told:
            self._tell_late(item, told)
        if item.number is None:
            item.closed = True
            if self._span is item:
                self._close_span(told.encrypted_content)
        elif told.status != "incomplete":
            item.closed = True
            self._out.append(CallClose(item.number))

    def _tell_late(self, item: "_Item", told: FrameItem) -> None:
        """What an item says that came without deltas."""
        sealed = told.encrypted_content is not None
        if item.number is None and (told.text or sealed):
            self._open_span(item)
        if sealed and not told.text:
            # A thought that the server keeps to itself: nothing to read, but a handle to it.
            self._out.append(ReasoningDelta(""))
        self._tell(item, told.text)

    def _close_span(self, seal: str | None = None) -> None:
        span, self._span = self._span, None
        if span is not None:
            self._out.append(SpanEnd("text" if span.kind == "message" else "reasoning", seal=seal))

    def _end(self, response: Ending) -> None:
        if response.status in ("failed", "cancelled") or response.error:
            self._fail(response.error or {})
            return
        cut = response.status == "incomplete"
        for at, told in enumerate(response.output or ()):
            self._close(self._streamed(told, at) or self._item(told, at), told)
        self._close_span()
        self._over = True
        if response.usage is not None:
            self._out.append(response.usage.usage())
        self._out.append(Finish(self._reason(cut, response.incomplete_details or {})))

    def _reason(self, cut: bool, details: Mapping[str, Any]) -> FinishReason:
        if cut:
            reason = details.get("reason")
            return _INCOMPLETE.get(reason, "length") if isinstance(reason, str) else "length"
        return "tool_calls" if self._calls else "stop"

    def _fail(self, error: dict[str, Any] | str) -> None:
        self._over = True
        told = error if isinstance(error, dict) else {"message": error}
        code, message, param = told.get("code"), told.get("message"), told.get("param")
        kind = _CODES.get(code) if isinstance(code, str) else None
        self._out.append(
            Failure(
                kind or kind_of(told),
                message if isinstance(message, str) else "The server failed.",
                param if isinstance(param, str) else None,
            )
        )


class _Item:
    """An output item in the making. `number` counts the calls."""

    __slots__ = ("closed", "id", "kind", "number", "part", "place", "summary", "told")

    def __init__(self, kind: str, id: str | None, place: int | None) -> None:
        self.kind = kind
        self.id = id
        self.place = place
        self.number: int | None = None
        self.closed = False
        self.told = False
        self.summary = False
        self.part: int | None = None


_ON: dict[str, Callable[[ResponsesReader, Frame], None]] = {
    "response.output_item.added": ResponsesReader._added,
    "response.output_item.done": ResponsesReader._done,
    "response.output_text.delta": ResponsesReader._text,
    "response.refusal.delta": ResponsesReader._text,
    "response.reasoning_text.delta": ResponsesReader._thought,
    "response.reasoning_summary_text.delta": ResponsesReader._thought,
    "response.function_call_arguments.delta": ResponsesReader._arguments,
    "response.custom_tool_call_input.delta": ResponsesReader._arguments,
    "response.completed": ResponsesReader._completed,
    "response.incomplete": ResponsesReader._completed,
    "response.failed": ResponsesReader._failed,
    "response.cancelled": ResponsesReader._failed,
    "error": ResponsesReader._failed,
}
