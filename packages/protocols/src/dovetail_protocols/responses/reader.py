"""Decode a Responses stream into events: the response of an upstream server, or a recording.

Items mark their own end, so a call may run as soon as its item is done. Servers differ in how much
they stream: parts without deltas are emitted at the end of the item or of the response. A stream
ends with `response.completed`, `incomplete` or `failed`; otherwise it was interrupted.
"""

from collections.abc import Callable, Mapping, Sequence
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
    HostedItem,
    Logprobs,
    ReasoningDelta,
    SpanEnd,
    TextDelta,
)
from dovetail_protocols.citations import Annotation, to_citation
from dovetail_protocols.openai_error import error_kind
from dovetail_protocols.responses.frame import FrameItem, FrameResponse, ResponseFrame
from dovetail_protocols.responses.hosted_reader import HostedReader
from dovetail_protocols.responses.sequencer import EventSequencer
from dovetail_protocols.sse import ServerEvent, SseReader

_decode = msgspec.json.Decoder(ResponseFrame).decode
_decode_response = msgspec.json.Decoder(FrameResponse).decode
_decode_item = msgspec.json.Decoder(FrameItem).decode

_KINDS = ("message", "reasoning", "function_call", "custom_tool_call")
_INCOMPLETE: dict[str, FinishReason] = {"content_filter": "refusal"}
_ERROR_KINDS = {"invalid_prompt": "invalid_request", "insufficient_quota": "rate_limited"}
"""Error codes of a failed response that the API's other errors do not have."""


class ResponsesReader:
    """Reads one response, in chunks of any size."""

    __slots__ = (
        "_calls", "_citations", "_hosted", "_items", "_out", "_over", "_sequencer", "_span", "_sse",
    )  # fmt: skip

    def __init__(self) -> None:
        self._sse = SseReader()
        self._out: list[Event] = []
        self._sequencer = EventSequencer()
        self._items: list[_ItemState] = []
        self._hosted = HostedReader()
        self._span: _ItemState | None = None  # the open text or reasoning
        self._calls = 0
        self._citations = 0
        self._over = False

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that these bytes complete."""
        for event in self._sse.feed(chunk):
            if not self._over:
                self._take(event)
        return self._take_events()

    def whole(self, body: bytes) -> list[Event]:
        """Decode a non-streaming response."""
        try:
            self._end(_decode_response(body), body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self._fail({"message": "The upstream server returned an invalid response."})
        return self._take_events()

    def finish(self) -> list[Event]:
        """Return the remaining events after the connection has closed."""
        if not self._over:
            self._over = True
            self._out.append(
                Failure(
                    "engine_unavailable",
                    "The upstream server closed the stream before the end of the response.",
                )
            )
        return self._take_events()

    def _take_events(self) -> list[Event]:
        out, self._out = self._out, []
        return self._sequencer.order(out)

    def _take(self, event: ServerEvent) -> None:
        if not event.data or event.data.startswith("[DONE]"):
            return
        try:
            frame = _decode(event.data)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self._out.append(Diagnostic("malformed_chunk"))
            return
        try:
            self._take_frame(frame, frame.type or event.event, event.data)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self._out.append(Diagnostic("malformed_chunk"))  # in the response object

    def _take_frame(self, frame: ResponseFrame, kind: str, data: str) -> None:
        take = _ON.get(kind)
        hosted = frame.item is not None and frame.item.type not in ("", *_KINDS)
        if hosted or (take is None and self._hosted.knows(frame.output_index, frame.item_id)):
            self._append_hosted(self._hosted.read_frame(kind, data))
        elif take is not None:
            take(self, frame)

    def _append_hosted(self, event: HostedItem | None) -> None:
        if event is not None:
            self._close_span()
            self._out.append(event)

    def _started(self, frame: ResponseFrame) -> None:
        """Read the fields of the response object, which servers send before the output."""
        if _is_object(frame.response):
            self._append_fields(frame.response)

    def _append_fields(self, response: bytes | msgspec.Raw) -> None:
        fields = self._hosted.read_fields(response)
        if fields is not None:
            self._out.append(fields)

    def _added(self, frame: ResponseFrame) -> None:
        if frame.item is not None:
            self._item(frame.item, frame.output_index)

    def _done(self, frame: ResponseFrame) -> None:
        if frame.item is not None:
            self._close(self._item(frame.item, frame.output_index), frame.item)

    def _text(self, frame: ResponseFrame) -> None:
        item = self._place(frame, "message")
        self._open_span(item)
        item.part_starts.setdefault(frame.content_index, item.length)
        if frame.logprobs:
            self._out.append(Logprobs(tuple(token.to_token_logprob() for token in frame.logprobs)))
        self._append_delta(item, frame.delta or "")

    def _annotation(self, frame: ResponseFrame) -> None:
        """Read a reference of a text to a web page or a file."""
        item = self._known(frame.item_id, frame.output_index) or self._span
        if item is None or frame.annotation is None:
            return
        if item.has_output or item.closed:  # else the finished item has it
            start = item.part_starts.get(frame.content_index, 0)
            self._append_annotations(item, [(frame.annotation, start)])

    def _append_annotations(
        self, item: "_ItemState", found: Sequence[tuple[Annotation, int]]
    ) -> None:
        """Emit annotations of an item, each with the start of its part in the text."""
        if found and self._span is not item:
            self._out.append(Diagnostic("late_annotation"))
            return
        for annotation, start in found:
            item.annotations += 1
            self._citations += 1
            self._out.append(to_citation(annotation, self._citations, start))

    def _reasoning(self, frame: ResponseFrame) -> None:
        """Read reasoning, or its summary if a server does not return the reasoning."""
        item = self._place(frame, "reasoning")
        summary = frame.type.startswith("response.reasoning_summary")
        if item.has_output and item.summary != summary:
            return
        item.summary = summary
        self._open_span(item)
        if summary and item.has_output and frame.summary_index != item.part:
            self._append_delta(item, "\n\n")
        item.part = frame.summary_index
        self._append_delta(item, frame.delta or "")

    def _arguments(self, frame: ResponseFrame) -> None:
        item = self._known(frame.item_id, frame.output_index)
        if item is None and frame.item_id is None and frame.output_index is None:
            item = self._items[-1] if self._items else None
        if item is None or item.number is None or item.closed:
            self._out.append(Diagnostic("late_arguments"))
        else:
            self._append_delta(item, frame.delta or "")

    def _completed(self, frame: ResponseFrame) -> None:
        body = frame.response
        if _is_object(body):
            self._end(_decode_response(body), body)
        else:
            self._end(FrameResponse(status=frame.type.removeprefix("response.")))

    def _failed(self, frame: ResponseFrame) -> None:
        body = frame.response
        error = _decode_response(body).error if _is_object(body) else frame.error
        if error is None:
            error = {"code": frame.code, "message": frame.message, "param": frame.param}
        self._fail(error)

    def _place(self, frame: ResponseFrame, kind: str) -> "_ItemState":
        """Return the item of a delta. Some servers do not announce added items."""
        return self._item(FrameItem(type=kind, id=frame.item_id), frame.output_index)

    def _item(self, frame_item: FrameItem, place: int | None) -> "_ItemState":
        """Return the item that is meant, or a new one."""
        found = self._known(frame_item.id, place)
        last = self._items[-1] if self._items else None
        nameless = place is None and (
            frame_item.id is None or (last is not None and last.id is None)
        )
        if found is None and nameless and last is not None and not last.closed:
            found = last if last.kind == frame_item.type else None
        if found is None:
            found = _ItemState(frame_item.type, frame_item.id, place)
            self._items.append(found)
            if frame_item.is_call:
                self._open_call(found, frame_item)
        return found

    def _known(self, id: str | None, place: int | None) -> "_ItemState | None":
        """Find an item by index or id. Servers send both, one of them, or none."""
        for item in reversed(self._items):
            if place is not None and item.place == place:
                return item
            if id is not None and item.id == id and (place is None or item.place is None):
                return item
        return None

    def _streamed(self, frame_item: FrameItem, at: int) -> "_ItemState | None":
        """Find the streamed state of an item in the final output that has neither index nor id."""
        found = self._items[at] if at < len(self._items) else None
        if found is None or found.place is not None or found.id is not None:
            return None
        return found if found.kind == frame_item.type else None

    def _open_call(self, item: "_ItemState", frame_item: FrameItem) -> None:
        self._close_span()
        item.number, self._calls = self._calls, self._calls + 1
        custom = frame_item.type == "custom_tool_call"
        id = frame_item.call_id or frame_item.id
        self._out.append(
            CallOpen(item.number, frame_item.name or "", id, frame_item.namespace, custom=custom)
        )

    def _open_span(self, item: "_ItemState") -> None:
        if self._span is not item:
            self._close_span()
            self._span = item

    def _append_delta(self, item: "_ItemState", text: str) -> None:
        """Emit more of an item."""
        if not text:
            return
        item.has_output = True
        if item.number is not None:
            self._out.append(CallArgs(item.number, text))
        elif item.kind == "reasoning":
            self._out.append(ReasoningDelta(text))
        else:
            item.length += len(text)
            self._out.append(TextDelta(text))

    def _close(self, item: "_ItemState", frame_item: FrameItem) -> None:
        """Close an item, and emit the parts that had no deltas."""
        if item.closed or item.kind not in _KINDS:
            return
        if not item.has_output:
            self._append_missing(item, frame_item)
        if item.kind == "message":
            self._append_annotations(item, frame_item.annotations[item.annotations :])
        if item.number is None:
            item.closed = True
            if self._span is item:
                self._close_span(frame_item.encrypted_content)
        elif frame_item.status != "incomplete":
            item.closed = True
            self._out.append(CallClose(item.number))

    def _append_missing(self, item: "_ItemState", frame_item: FrameItem) -> None:
        """Emit an item that had no deltas."""
        sealed = frame_item.encrypted_content is not None
        if item.number is None and (frame_item.text or sealed):
            self._open_span(item)
        if sealed and not frame_item.text:
            # Reasoning that the server does not return: a seal without text.
            self._out.append(ReasoningDelta(""))
        self._append_delta(item, frame_item.text)

    def _close_span(self, seal: str | None = None) -> None:
        span, self._span = self._span, None
        if span is not None:
            self._out.append(SpanEnd("text" if span.kind == "message" else "reasoning", seal=seal))

    def _end(self, response: FrameResponse, body: bytes | msgspec.Raw = b"{}") -> None:
        if response.status in ("failed", "cancelled") or response.error:
            self._fail(response.error or {})
            return
        truncated = response.status == "incomplete"
        for at, raw in enumerate(response.output or ()):
            frame_item = _decode_item(raw)
            if frame_item.type in _KINDS:
                item = self._streamed(frame_item, at) or self._item(frame_item, at)
                self._close(item, frame_item)
            else:
                self._append_hosted(self._hosted.read_item(raw, at))
        self._close_span()
        self._append_fields(body)
        self._over = True
        if response.usage is not None:
            self._out.append(response.usage.usage())
        self._out.append(Finish(self._finish_reason(truncated, response.incomplete_details or {})))

    def _finish_reason(self, truncated: bool, details: Mapping[str, Any]) -> FinishReason:
        if truncated:
            reason = details.get("reason")
            return _INCOMPLETE.get(reason, "length") if isinstance(reason, str) else "length"
        return "tool_calls" if self._calls else "stop"

    def _fail(self, error: dict[str, Any] | str) -> None:
        self._over = True
        fields = error if isinstance(error, dict) else {"message": error}
        code, message, param = fields.get("code"), fields.get("message"), fields.get("param")
        kind = _ERROR_KINDS.get(code) if isinstance(code, str) else None
        self._out.append(
            Failure(
                kind or error_kind(fields),
                message if isinstance(message, str) else "The upstream server reported an error.",
                param if isinstance(param, str) else None,
            )
        )


class _ItemState:
    """An output item under construction.

    `number` counts the calls. `length` is the number of characters of a text, `part_starts` has
    the start of each of its parts, and `annotations` counts those that were emitted.
    """

    __slots__ = (
        "annotations", "closed", "has_output", "id", "kind", "length", "number", "part",
        "part_starts", "place", "summary",
    )  # fmt: skip

    def __init__(self, kind: str, id: str | None, place: int | None) -> None:
        self.kind = kind
        self.id = id
        self.place = place
        self.number: int | None = None
        self.closed = False
        self.has_output = False
        self.summary = False
        self.part: int | None = None
        self.length = 0
        self.part_starts: dict[int | None, int] = {}
        self.annotations = 0


def _is_object(body: msgspec.Raw) -> bool:
    return bytes(body).startswith(b"{")


_ON: dict[str, Callable[[ResponsesReader, ResponseFrame], None]] = {
    "response.created": ResponsesReader._started,
    "response.in_progress": ResponsesReader._started,
    "response.output_item.added": ResponsesReader._added,
    "response.output_item.done": ResponsesReader._done,
    "response.output_text.delta": ResponsesReader._text,
    "response.output_text.annotation.added": ResponsesReader._annotation,
    "response.refusal.delta": ResponsesReader._text,
    "response.reasoning_text.delta": ResponsesReader._reasoning,
    "response.reasoning_summary_text.delta": ResponsesReader._reasoning,
    "response.function_call_arguments.delta": ResponsesReader._arguments,
    "response.custom_tool_call_input.delta": ResponsesReader._arguments,
    "response.completed": ResponsesReader._completed,
    "response.incomplete": ResponsesReader._completed,
    "response.failed": ResponsesReader._failed,
    "response.cancelled": ResponsesReader._failed,
    "error": ResponsesReader._failed,
}
