"""Encode events as the frames of a Messages stream.

The order is the API's: `message_start`; each block is started, streamed and stopped before the next
one starts; `message_delta`; `message_stop`. A block stops as soon as the model has ended it,
because clients run a tool when its block stops.
"""

from collections.abc import Callable, Sequence

import msgspec

from dovetail_model import (
    AppliedEdit,
    AppliedEdits,
    CallArgs,
    CallClose,
    CallOpen,
    Citation,
    Compaction,
    Event,
    Failure,
    Finish,
    ReasoningDelta,
    Request,
    ServerToolResult,
    SpanEnd,
    TextDelta,
    Usage,
)
from dovetail_protocols.codec import Clock, IdFactory
from dovetail_protocols.delta_run import NO_RUN, DeltaRun, DeltaRunEncoder
from dovetail_protocols.dispatch import Dispatcher
from dovetail_protocols.json_strings import encode_json_string as _encode
from dovetail_protocols.json_strings import escape_json
from dovetail_protocols.messages import wire
from dovetail_protocols.messages.arguments import CUSTOM_HEAD, CUSTOM_TAIL
from dovetail_protocols.messages.error import error_frame
from dovetail_protocols.messages.message import (
    BROKEN_OUTPUT,
    MESSAGE_PREFIX,
    STOP_REASONS,
    clean_summary,
    context_out,
    to_usage_out,
)
from dovetail_protocols.messages.server_blocks import (
    encode_citation,
    encode_result,
    to_public_id,
)
from dovetail_protocols.sse import frame

CALL_PREFIX = "toolu_"

_PING = frame(b'{"type":"ping"}', b"ping")
_MESSAGE_STOP = frame(b'{"type":"message_stop"}', b"message_stop")
_DELTA_HEAD = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":'
)
_TEXT_HEAD = _DELTA_HEAD + b'"text_delta","text":'
_THINKING_HEAD = _DELTA_HEAD + b'"thinking_delta","thinking":'
_SIGNATURE_HEAD = _DELTA_HEAD + b'"signature_delta","signature":'
_CITATION_HEAD = _DELTA_HEAD + b'"citations_delta","citation":'
_INPUT_HEAD = _DELTA_HEAD + b'"input_json_delta","partial_json":'
_DELTA_TAIL = b"}}\n\n"
_START = frame(
    b'{"type":"content_block_start","index":%d,"content_block":%b}', b"content_block_start"
)
_STOP = frame(b'{"type":"content_block_stop","index":%d}', b"content_block_stop")
_TEXT = b'{"type":"text","text":""}'
_THINKING = b'{"type":"thinking","thinking":"","signature":""}'
_COMPACTION = b'{"type":"compaction","content":null}'
_SERVER_TOOL_USE = b'{"type":"server_tool_use","id":%b,"name":%b,"input":{}}'
_TOOL_USE = b'{"type":"tool_use","id":%b,"name":%b,"input":{}}'


class MessagesStream(DeltaRunEncoder):
    """Encodes the frames of one response. Calls are sequential, as models generate them."""

    __slots__ = (
        "_applied_edits",
        "_block",
        "_call",
        "_compaction",
        "_dispatcher",
        "_ids",
        "_index",
        "_over",
        "_pending",
        "_request",
        "_sent",
        "_started",
        "_usage",
    )

    def __init__(self, request: Request, ids: IdFactory) -> None:
        super().__init__()
        self._ids = ids
        self._request = request
        dispatcher = Dispatcher(request.hints)
        self._dispatcher = dispatcher if dispatcher.active else None
        self._usage = Usage()
        self._started = False
        self._over = False
        self._index = 0  # of the open block, or of the next one
        self._block = NO_RUN  # the deltas of the open block
        self._pending: list[str] = []  # leading white space of a text block without content
        self._call = CallOpen(-1, "")
        self._sent = False  # whether any arguments of the open call were sent
        self._compaction: Compaction | None = None
        self._applied_edits: tuple[AppliedEdit, ...] = ()

    def _encode(self, events: Sequence[Event], choice: int) -> bytes:
        """Encode these events. The API has one choice; others are ignored."""
        if choice:
            return b""
        frames: list[bytes] = []
        for event in events:
            handler = _HANDLERS.get(type(event))
            if handler is None or self._over:
                continue
            if not self._started:
                frames.append(self._start(event))
            frames.append(handler(self, event))
            if self._dispatcher is not None:
                frames.append(self._dispatcher.observe(event))
        self._run = self._block if self._next_run() else NO_RUN
        return b"".join(frames)

    def keep_alive(self, *, in_reasoning: bool = False) -> bytes:
        """Return a ping once the message has started; before that the HTTP status is still open.

        Claude Code disconnects after 300 s in which only pings arrived. While the first token of a
        reasoning span is pending, an empty delta of that span counts as more than a ping.
        """
        if in_reasoning:
            return self.encode([ReasoningDelta("")])
        return _PING if self._started and not self._over else b""

    def _next_run(self) -> bool:
        """Return whether the next delta of the open block needs only its frame."""
        if self._over or self._dispatcher is not None:
            return False
        return self._block.kind is not CallArgs or (self._sent and not self._call.custom)

    def _start(self, event: Event) -> bytes:
        if isinstance(event, Failure):
            return b""  # the response never started
        self._started = True
        usage = event if isinstance(event, Usage) else self._usage
        message = wire.MessageOut(
            self._ids(MESSAGE_PREFIX),
            "assistant",
            self._request.model,
            [],
            None,
            None,
            to_usage_out(usage),
        )
        data = b'{"type":"message_start","message":' + msgspec.json.encode(message) + b"}"
        return frame(data, b"message_start")

    def _on_text(self, event: TextDelta) -> bytes:
        """Encode text. White space is held: a blank block makes Claude Code reorder the turn."""
        text = event.text
        if self._block.kind is TextDelta:
            return self._block.frame(text) if text else b""
        if not text or text.isspace():
            self._pending.append(text)
            return b"" if self._block.kind is CallArgs else self._stop()
        text = "".join(self._pending) + text
        stopped = self._end()
        started = self._open_block(TextDelta, _TEXT_HEAD, _TEXT)
        return stopped + started + self._block.frame(text)

    def _on_reasoning(self, event: ReasoningDelta) -> bytes:
        """Encode reasoning. Empty deltas are sent too: they keep a long prefill alive."""
        started = b""
        if self._block.kind is not ReasoningDelta:
            started = self._end() + self._open_block(ReasoningDelta, _THINKING_HEAD, _THINKING)
        return started + self._block.frame(event.text)

    def _on_span_end(self, event: SpanEnd) -> bytes:
        """End the open span. Markup after a call (`frame`) belongs to no block."""
        if self._block.kind is CallArgs:
            self._pending.clear()
            return b""
        signature = b""
        if event.seal and self._block.kind is ReasoningDelta:
            signature = _SIGNATURE_HEAD % self._index + _encode(event.seal) + _DELTA_TAIL
        return signature + self._end()

    def _on_call_open(self, event: CallOpen) -> bytes:
        ended = self._end()
        self._call = event
        self._sent = event.custom
        id = event.id or self._ids(CALL_PREFIX)
        if event.server is not None:
            block = _SERVER_TOOL_USE % (_encode(to_public_id(id)), _encode(event.server))
        else:
            block = _TOOL_USE % (_encode(id), _encode(event.name))
        started = ended + self._open_block(CallArgs, _INPUT_HEAD, block, event.index)
        return started + self._block.frame(CUSTOM_HEAD) if event.custom else started

    def _on_server_result(self, event: ServerToolResult) -> bytes:
        """Encode the result of a server tool: its block has no deltas."""
        frames = self._end() + _START % (self._index, msgspec.json.encode(encode_result(event)))
        self._index += 1
        return frames + _STOP % (self._index - 1)

    def _on_citation(self, event: Citation) -> bytes:
        if self._block.kind is not TextDelta:
            return b""
        citation = msgspec.json.encode(encode_citation(event))
        return _CITATION_HEAD % self._index + citation + _DELTA_TAIL

    def _on_call_args(self, event: CallArgs) -> bytes:
        text = event.text
        if event.index != self._block.call:
            return b""  # the call's block has stopped: the call was truncated
        if self._call.custom:
            text = escape_json(text)
        elif not self._sent:
            text = text.lstrip()  # the official SDK fails on white space alone
        if not text:
            return b""
        self._sent = True
        return self._block.frame(text)

    def _on_call_close(self, event: CallClose) -> bytes:
        if event.index != self._block.call:
            return b""
        self._sent = True  # complete: without any arguments they are an empty object
        tail = self._block.frame(CUSTOM_TAIL) if self._call.custom else b""
        return tail + self._end()

    def _on_usage(self, event: Usage) -> bytes:
        self._usage = event
        return b""

    def _on_compaction(self, event: Compaction) -> bytes:
        """Encode a summary in one piece: clients replace its content by each delta."""
        self._compaction = event
        delta = wire.CompactionDeltaOut(clean_summary(event))
        frames = self._end() + _START % (self._index, _COMPACTION)
        frames += frame(
            msgspec.json.encode(wire.BlockDeltaOut(self._index, delta)), b"content_block_delta"
        )
        self._index += 1
        return frames + _STOP % (self._index - 1)

    def _on_applied_edits(self, event: AppliedEdits) -> bytes:
        self._applied_edits = event.edits
        return b""

    def _on_finish(self, event: Finish) -> bytes:
        reason = STOP_REASONS.get(event.reason)
        if reason is None:
            return self._on_failure(BROKEN_OUTPUT)
        self._over = True
        delta: dict[str, object] = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": event.stop_sequence},
            "usage": to_usage_out(self._usage, self._compaction, event.reason),
        }
        context = context_out(self._request, self._applied_edits)
        if context is not None:
            delta["context_management"] = context
        return self._end() + frame(msgspec.json.encode(delta), b"message_delta") + _MESSAGE_STOP

    def _on_failure(self, event: Failure) -> bytes:
        """Encode an error without a clean end: the open block stays open, so that no tool runs."""
        self._over = True
        return error_frame(event)

    def _open_block(
        self, takes: type[Event], head: bytes, block: bytes, call: int | None = None
    ) -> bytes:
        self._block = DeltaRun(takes, head % self._index, _DELTA_TAIL, call=call)
        return _START % (self._index, block)

    def _end(self) -> bytes:
        """Prepare for another block or the end: pending white space is dropped."""
        self._pending.clear()
        return self._stop()

    def _stop(self) -> bytes:
        """Stop the open block. A truncated call must not look like one without arguments."""
        block = self._block
        if block is NO_RUN:
            return b""
        unfinished = block.frame("{") if block.kind is CallArgs and not self._sent else b""
        stop = _STOP % self._index
        self._block = NO_RUN
        self._index += 1
        return unfinished + stop


_HANDLERS: dict[type, Callable[..., bytes]] = {
    TextDelta: MessagesStream._on_text,
    ReasoningDelta: MessagesStream._on_reasoning,
    SpanEnd: MessagesStream._on_span_end,
    CallOpen: MessagesStream._on_call_open,
    ServerToolResult: MessagesStream._on_server_result,
    Citation: MessagesStream._on_citation,
    CallArgs: MessagesStream._on_call_args,
    CallClose: MessagesStream._on_call_close,
    Usage: MessagesStream._on_usage,
    Compaction: MessagesStream._on_compaction,
    AppliedEdits: MessagesStream._on_applied_edits,
    Finish: MessagesStream._on_finish,
    Failure: MessagesStream._on_failure,
}


def stream(request: Request, ids: IdFactory, clock: Clock) -> MessagesStream:
    """Return an encoder for one response. This API has no timestamps."""
    return MessagesStream(request, ids)
