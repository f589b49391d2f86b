"""Encode events as frames, and a finished message as a response object, with items in order."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Citation,
    CitedTextBlock,
    Diagnostic,
    Event,
    Failure,
    Finish,
    HostedItem,
    Logprobs,
    Message,
    ReasoningBlock,
    ReasoningDelta,
    Request,
    ResponseBlock,
    ResponseFields,
    ServerToolResult,
    SpanEnd,
    TextBlock,
    TextDelta,
    TokenLogprob,
    ToolCallBlock,
    Usage,
)
from dovetail_protocols.codec import Clock, IdFactory, OnEnd
from dovetail_protocols.delta_run import NO_RUN, DeltaRun, DeltaRunEncoder
from dovetail_protocols.dispatch import Dispatcher
from dovetail_protocols.responses.echo import echo_of
from dovetail_protocols.responses.hosted_reader import ITEM_ADDED
from dovetail_protocols.responses.output_items import (
    CallItem,
    CustomCallItem,
    FrameWriter,
    HostedOutputItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
    TokenSplitter,
    ToolSearchItem,
    logprob_out,
)
from dovetail_protocols.responses.response import ResponseObject, ResponseOutcome, to_outcome
from dovetail_protocols.responses.server_items import (
    SealedResultItem,
    WebSearchItem,
    citation_out,
)
from dovetail_protocols.responses.tools import TOOL_SEARCH


class OutputItems:
    """The items of one response in the order of their start, each with its index and id."""

    __slots__ = ("_ids", "_sources", "_summary", "_tool_search", "all", "frames")

    def __init__(self, request: Request, ids: IdFactory, frames: FrameWriter) -> None:
        self.all: list[OutputItem] = []
        self.frames = frames
        self._ids = ids
        self._summary = request.thinking.summary is not None
        echo = echo_of(request)
        self._tool_search, self._sources = echo.tool_search, echo.search_sources

    def message(self) -> MessageItem:
        item = MessageItem(self._ids(MessageItem.prefix), len(self.all), self.frames)
        self.all.append(item)
        return item

    def reasoning(self) -> ReasoningItem:
        identity = self._ids(ReasoningItem.prefix)
        item = ReasoningItem(identity, len(self.all), self.frames, self._summary)
        self.all.append(item)
        return item

    def call(self, call: CallOpen) -> CallItem:
        kind = CustomCallItem if call.custom else CallItem
        if self._tool_search and (call.namespace, call.name) == (None, TOOL_SEARCH):
            kind = ToolSearchItem
        item = kind(self._ids(kind.prefix), len(self.all), self.frames, call)
        self.all.append(item)
        return item

    def hosted(self, event: HostedItem) -> HostedOutputItem:
        item = HostedOutputItem(len(self.all), self.frames, event.item or {})
        self.all.append(item)
        return item

    def server_call(self, call: CallOpen) -> WebSearchItem:
        identity, index = self._ids(WebSearchItem.prefix), len(self.all)
        item = WebSearchItem(identity, index, self.frames, call, sources=self._sources)
        self.all.append(item)
        return item

    def sealed_result(self, result: ServerToolResult) -> SealedResultItem:
        identity = self._ids(SealedResultItem.prefix)
        item = SealedResultItem(identity, len(self.all), self.frames, result)
        self.all.append(item)
        return item

    def find_server_call(self, call_id: str) -> WebSearchItem | None:
        """Find the item of a call that the server runs."""
        calls = (item for item in self.all if isinstance(item, WebSearchItem))
        return next((item for item in calls if item.call_id == call_id), None)

    def block(self, block: ResponseBlock) -> OutputItem | None:
        """Return the finished item of a block; None if a stream would not have sent one."""
        item: OutputItem
        match block:
            case ServerToolResult(call_id=call_id):
                call = self.find_server_call(call_id)
                if call is not None:
                    call.add_result(block)
                return self.sealed_result(block)
            case TextBlock(text=text):
                if not text.strip():
                    return None
                item = self.message()
                if isinstance(block, CitedTextBlock):
                    item.annotations += map(citation_out, block.citations)
            case ReasoningBlock(text=text, seal=seal):
                item = self.reasoning()
                item.seal = seal
            case ToolCallBlock(arguments=text, server=server):
                opened = CallOpen(
                    0, block.name, block.id, block.namespace, custom=block.custom, server=server
                )
                item = self.call(opened) if server is None else self.server_call(opened)
        item.pieces.append(text)
        item.done = not isinstance(block, ToolCallBlock) or (block.complete and not block.server)
        return item


class ResponsesEncoder(DeltaRunEncoder):
    """Encodes the stream of one response.

    `on_end` receives the final response object and its frame, and returns the frame to send.
    """

    __slots__ = (
        "_begun", "_calls", "_dispatcher", "_ended", "_frames", "_held", "_hosted", "_items",
        "_response", "_span", "_tokens", "_usage", "_wants_logprobs", "on_end",
    )  # fmt: skip

    def __init__(self, request: Request, ids: IdFactory, clock: Clock) -> None:
        super().__init__()
        self._response = ResponseObject(request, ids, clock)
        self._frames = FrameWriter()
        self._items = OutputItems(request, ids, self._frames)
        dispatcher = Dispatcher(request.hints)
        self._dispatcher = dispatcher if dispatcher.active else None
        self._wants_logprobs = request.sampling.logprobs is not None
        self._span: MessageItem | ReasoningItem | None = None
        self._hosted: dict[int, HostedOutputItem] = {}
        self._calls: dict[int, CallItem | WebSearchItem] = {}
        self._held: list[str] = []  # white space that may turn out to start a text
        self._tokens: list[TokenLogprob] = []
        self._usage = Usage()
        self._begun = False
        self._ended = False
        self.on_end: OnEnd | None = None

    def queued(self) -> bytes:
        """Return the response object of a queued response."""
        return bytes(self._response.queued())

    def in_progress(self) -> bytes:
        """Return the response object while the model generates."""
        return bytes(self._response.in_progress())

    def cancel(self) -> bytes:
        """End a cancelled response; its items stay incomplete."""
        if self._ended:
            return b""
        begun = b"" if self._begun else self._begin()
        return begun + self._end(ResponseOutcome("cancelled"))

    def _encode(self, events: Sequence[Event], choice: int) -> bytes:
        """Encode these events. This API has one choice; others are ignored."""
        out: list[bytes] = []
        for event in events:
            if self._ended or choice:
                break
            if type(event) is ResponseFields:
                self._response.update(event)
                continue
            if not self._begun:
                out.append(self._begin())
            self._run = NO_RUN  # unless the event is a delta
            out.append(self._on[type(event)](self, event))
            if self._dispatcher is not None:
                self._run = NO_RUN  # the dispatcher must observe every delta
                out.append(self._dispatcher.observe(event))
        return b"".join(out)

    def keep_alive(self, *, in_reasoning: bool = False) -> bytes:
        """Return an event that keeps clients from timing out; comments do not."""
        if self._ended:
            return b""
        if not self._begun:
            return self._begin()
        return self._frames.frame("response.in_progress", response=self._response.in_progress())

    def _begin(self) -> bytes:
        self._begun = True
        response = self._response.in_progress()
        created = self._frames.frame("response.created", response=response)
        return created + self._frames.frame("response.in_progress", response=response)

    def _text(self, event: TextDelta) -> bytes:
        span = self._span
        if type(span) is MessageItem:
            return self._append_delta(span, event.text)
        closed = self._close_span() if span is not None else b""
        self._held.append(event.text)
        if not event.text.strip():
            # A client would store a blank item and send it back with every request.
            return closed
        self._span = span = self._items.message()
        text = "".join(self._held)
        self._held.clear()
        return closed + span.open() + self._append_delta(span, text)

    def _append_delta(self, span: MessageItem, text: str) -> bytes:
        if not self._tokens:
            return self._continue_run(span.run, text)
        tokens, self._tokens = self._tokens, []
        return span.add_with(text, tokens)

    def _reasoning(self, event: ReasoningDelta) -> bytes:
        span = self._span
        self._tokens.clear()  # only visible text has logprobs
        if type(span) is ReasoningItem:
            return self._continue_run(span.run, event.text)
        closed = self._close_span()
        self._span = span = self._items.reasoning()
        return closed + span.open() + self._continue_run(span.run, event.text)

    def _continue_run(self, run: DeltaRun, text: str) -> bytes:
        """Encode a delta. The next one may continue the run."""
        self._run = run
        return run.frame(text)

    def _span_end(self, event: SpanEnd) -> bytes:
        self._tokens.clear()
        return self._close_span(event.seal)

    def _close_span(self, seal: str | None = None) -> bytes:
        span, self._span = self._span, None
        self._held.clear()
        if isinstance(span, ReasoningItem):
            return span.close(seal)
        return span.close() if span is not None else b""

    def _call_open(self, event: CallOpen) -> bytes:
        closed = self._close_span()
        self._tokens.clear()
        create = self._items.call if event.server is None else self._items.server_call
        item: CallItem | WebSearchItem = create(event)
        self._calls[event.index] = item
        return closed + item.open()

    def _call_args(self, event: CallArgs) -> bytes:
        self._tokens.clear()
        item = self._calls.get(event.index)
        return b"" if item is None else self._continue_run(item.run, event.text)

    def _call_close(self, event: CallClose) -> bytes:
        item = self._calls.pop(event.index, None)
        return b"" if item is None else item.close()

    def _hosted_item(self, event: HostedItem) -> bytes:
        closed = self._close_span()
        item = self._hosted.get(event.index)
        opened = b""
        if item is None:
            item = self._hosted[event.index] = self._items.hosted(event)
            if event.kind != ITEM_ADDED:
                opened = item.write(msgspec.structs.replace(event, kind=ITEM_ADDED, fields={}))
        return closed + opened + item.write(event)

    def _server_result(self, event: ServerToolResult) -> bytes:
        closed = self._close_span()
        item = self._items.find_server_call(event.call_id)
        finished = b"" if item is None else item.finish(event)
        return closed + finished + self._items.sealed_result(event).send()

    def _citation(self, event: Citation) -> bytes:
        span = self._span
        return span.annotate(citation_out(event)) if type(span) is MessageItem else b""

    def _count(self, event: Usage) -> bytes:
        self._usage = event
        return b""

    def _logprobs(self, event: Logprobs) -> bytes:
        if self._wants_logprobs:
            self._tokens.extend(event.tokens)
        return b""

    def _finish(self, event: Finish) -> bytes:
        broken = event.reason in ("error", "cancelled")
        closed = b"" if broken else self._close_span()
        truncated = not all(item.done for item in self._items.all)
        return closed + self._end(to_outcome(event.reason, None, truncated))

    def _failure(self, event: Failure) -> bytes:
        """Fail without closing items: a client must not take an item for complete."""
        return self._end(to_outcome("error", event, truncated=False))

    def _end(self, end: ResponseOutcome) -> bytes:
        self._ended = True
        output = [item.final() for item in self._items.all]
        response = self._response.finished(end, output, self._usage)
        frame = self._frames.frame(f"response.{end.status}", response=response)
        return frame if self.on_end is None else self.on_end(bytes(response), frame)

    def _ignore(self, event: Diagnostic) -> bytes:
        return b""

    _on: ClassVar[dict[type, Callable[[Any, Any], bytes]]] = {
        TextDelta: _text,
        ReasoningDelta: _reasoning,
        SpanEnd: _span_end,
        CallOpen: _call_open,
        CallArgs: _call_args,
        CallClose: _call_close,
        HostedItem: _hosted_item,
        ServerToolResult: _server_result,
        Citation: _citation,
        Usage: _count,
        Logprobs: _logprobs,
        Finish: _finish,
        Diagnostic: _ignore,
        Failure: _failure,
    }


def encode_message(
    request: Request, messages: Sequence[Message], ids: IdFactory, clock: Clock
) -> bytes:
    """Encode a non-streaming response, with the same items and ids as the stream."""
    message = messages[0]
    response = ResponseObject(request, ids, clock)
    items = OutputItems(request, ids, FrameWriter())
    tokens = TokenSplitter(message.logprobs if request.sampling.logprobs is not None else ())
    if message.response_fields is not None:
        response.update(message.response_fields)
    position = 0
    for block in message.response_blocks():
        if not isinstance(block, ServerToolResult):
            _add_hosted(items, message, position)
            position += 1
        item = items.block(block)
        found = tokens.take(block)
        if isinstance(item, MessageItem):
            item.logprobs += map(logprob_out, found)
    _add_hosted(items, message, len(message.blocks))
    truncated = not all(item.done for item in items.all)
    end = to_outcome(message.finish, message.failure, truncated)
    output = [item.final() for item in items.all]
    return bytes(response.finished(end, output, message.usage))


def _add_hosted(items: OutputItems, message: Message, place: int) -> None:
    """Add the hosted items that precede the block at this place."""
    for before, event in message.hosted_items:
        if before == place:
            items.hosted(event).done = event.kind != ITEM_ADDED
