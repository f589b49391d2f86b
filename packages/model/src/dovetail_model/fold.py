"""Fold a stream of events into a finished message.

Streaming is the only implementation: a non-streaming response is a folded stream. This module alone
decides what a truncated call means, for every API.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter

import msgspec

from dovetail_model.block import (
    CitedTextBlock,
    OutputBlock,
    ReasoningBlock,
    ResponseBlock,
    TextBlock,
    ToolCallBlock,
)
from dovetail_model.context import AppliedEdit
from dovetail_model.event import (
    AppliedEdits,
    CallArgs,
    CallClose,
    CallOpen,
    Compaction,
    Diagnostic,
    Event,
    Failure,
    Finish,
    FinishReason,
    Logprobs,
    ReasoningDelta,
    SpanEnd,
    TextDelta,
    TokenLogprob,
)
from dovetail_model.server_tool import Citation, ServerToolResult
from dovetail_model.upstream import HostedItem, ResponseFields
from dovetail_model.usage import Usage

_Delta = TextDelta | ReasoningDelta | CallArgs
_BY_CALL = attrgetter("index")
_MAX_RUN_EVENTS = 64  # deltas buffered before they are joined: bounds the strings per stream


class Message(msgspec.Struct, frozen=True):
    """A finished message: blocks in output order, finish reason and usage.

    `raw` is the complete model output. If there are blocks, it equals their joined `raw`.
    `compaction` is the summary that precedes the blocks, if the history was compacted.
    `server_results` are results of server tools, each with the number of blocks before it.
    `response_fields` is what an upstream server returned in its response object.
    `hosted_items` are the last states of hosted items, each with the number of blocks before it.
    """

    blocks: tuple[OutputBlock, ...] = ()
    finish: FinishReason = "stop"
    stop_sequence: str | None = None
    usage: Usage = Usage()
    diagnostics: tuple[Diagnostic, ...] = ()
    failure: Failure | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    raw: str = ""
    compaction: Compaction | None = None
    applied_edits: tuple[AppliedEdit, ...] = ()
    server_results: tuple[tuple[int, ServerToolResult], ...] = ()
    response_fields: ResponseFields | None = None
    hosted_items: tuple[tuple[int, HostedItem], ...] = ()

    def response_blocks(self) -> Iterator[ResponseBlock]:
        """Yield the blocks and the results of server tools in the order of the response."""
        start = 0
        for end, result in self.server_results:
            yield from self.blocks[start:end]
            yield result
            start = end
        yield from self.blocks[start:]


class Fold:
    """Fold events incrementally into a message.

    Nearly all events are deltas of the open block. They are buffered in a run and folded together.
    """

    __slots__ = (
        "_applied_edits",
        "_compaction",
        "_diagnostics",
        "_failure",
        "_finish",
        "_hosted_items",
        "_lead",
        "_logprobs",
        "_new_id",
        "_parts",
        "_response_fields",
        "_run",
        "_runs",
        "_server_results",
        "_usage",
    )

    def __init__(self, new_id: Callable[[CallOpen], str] | None = None) -> None:
        self._new_id = new_id or _default_id
        self._parts: list[_BlockBuilder] = []
        self._lead: list[str] = []  # raw text before the first block
        self._run: list[_Delta] = []  # deltas of the open block, not folded yet
        self._runs: type[_Delta] | None = None  # type of the deltas that may join the run
        self._finish: Finish | None = None
        self._usage = Usage()
        self._failure: Failure | None = None
        self._diagnostics: list[Diagnostic] = []
        self._logprobs: list[TokenLogprob] = []
        self._compaction: Compaction | None = None
        self._applied_edits: tuple[AppliedEdit, ...] = ()
        self._server_results: list[tuple[int, ServerToolResult]] = []
        self._response_fields: ResponseFields | None = None
        self._hosted_items: dict[int, tuple[int, HostedItem]] = {}

    def add(self, event: Event) -> None:
        if type(event) is self._runs:
            self._run.append(event)
            if len(self._run) == _MAX_RUN_EVENTS:
                self._join()
            return
        self._join()
        self._add(event)
        last = self._parts[-1] if self._parts else None
        self._runs = last.grows_by if last is not None and not last.ended else None

    def _join(self) -> None:
        """Fold the buffered run. It may alternate between the arguments of several open calls."""
        run, self._run = self._run, []
        if self._runs is CallArgs:
            for index, same in groupby(run, _BY_CALL):
                self._call(index).add_all(list(same))
        elif run:
            self._parts[-1].add_all(run)

    def _add(self, event: Event) -> None:
        match event:
            case TextDelta(text=text, raw=raw):
                self._span(TextDelta).add(text, raw)
            case ReasoningDelta(text=text, raw=raw):
                self._span(ReasoningDelta).add(text, raw)
            case SpanEnd(raw=raw, seal=seal):
                self._end_span(raw, seal)
            case CallOpen(raw=raw):
                self._part(_BlockBuilder(CallArgs, event, self._new_id(event))).add("", raw)
            case CallArgs(index=index, text=text, raw=raw):
                self._call(index).add(text, raw)
            case CallClose(index=index, raw=raw):
                self._call(index).end(raw)
            case _:
                self._record(event)

    def _record(self, event: Event) -> None:
        """Record an event that describes the message but is not part of its content."""
        match event:
            case Logprobs(tokens=tokens):
                self._logprobs.extend(tokens)
            case Usage():
                self._usage = event
            case Finish():
                self._finish = event
            case Diagnostic():
                self._diagnostics.append(event)
            case Failure():
                self._failure = event
            case Compaction():
                self._compaction = event
            case AppliedEdits(edits=edits):
                self._applied_edits = edits
            case ServerToolResult():
                self._server_results.append((len(self._parts), event))
            case Citation() if self._parts:
                self._parts[-1].citations.append(event)
            case _:
                self._record_upstream(event)

    def _record_upstream(self, event: Event) -> None:
        """Record what an upstream server returned in its own form."""
        if isinstance(event, ResponseFields):
            known = self._response_fields.fields if self._response_fields else {}
            self._response_fields = ResponseFields(event.api, {**known, **event.fields})
        elif isinstance(event, HostedItem) and event.item is not None:
            place, _ = self._hosted_items.get(event.index, (len(self._parts), event))
            self._hosted_items[event.index] = (place, event)

    def message(self) -> Message:
        self._join()
        blocks = tuple(part.block() for part in self._parts)
        finish = self._finish or Finish(self._finish_reason(blocks))
        return Message(
            blocks=blocks,
            finish=finish.reason,
            stop_sequence=finish.stop_sequence,
            usage=self._usage,
            diagnostics=tuple(self._diagnostics),
            failure=self._failure,
            logprobs=tuple(self._logprobs),
            raw="".join(self._lead) + "".join(block.raw for block in blocks),
            compaction=self._compaction,
            applied_edits=self._applied_edits,
            server_results=tuple(self._server_results),
            response_fields=self._response_fields,
            hosted_items=tuple(self._hosted_items.values()),
        )

    def _finish_reason(self, blocks: tuple[OutputBlock, ...]) -> FinishReason:
        """Infer the finish reason without a `Finish` event. A truncated call means `length`."""
        if self._failure is not None:
            return "error"
        calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
        if calls and not calls[-1].complete:
            return "length"
        return "tool_calls" if calls else "stop"

    def _span(self, delta: type[_Delta]) -> "_BlockBuilder":
        last = self._parts[-1] if self._parts else None
        if last is not None and last.grows_by is delta and not last.ended:
            return last
        return self._part(_BlockBuilder(delta))

    def _part(self, part: "_BlockBuilder") -> "_BlockBuilder":
        if self._lead:
            part.raw.extend(self._lead)
            self._lead.clear()
        self._parts.append(part)
        return part

    def _end_span(self, raw: str, seal: str | None) -> None:
        if not self._parts:
            self._lead.append(raw)
            return
        last = self._parts[-1]
        if last.grows_by is CallArgs:
            last.raw.append(raw)
        else:
            last.end(raw)
            last.seal = seal or last.seal

    def _call(self, index: int) -> "_BlockBuilder":
        for part in reversed(self._parts):
            if part.open is not None and part.open.index == index:
                return part
        raise LookupError(f"no tool call with index {index} was opened")


class _BlockBuilder:
    """A block under construction."""

    __slots__ = ("citations", "ended", "grows_by", "id", "open", "raw", "seal", "text")

    def __init__(
        self, grows_by: type[_Delta], opened: CallOpen | None = None, id: str = ""
    ) -> None:
        self.grows_by = grows_by
        self.open = opened
        self.id = id
        self.text: list[str] = []
        self.raw: list[str] = []
        self.ended = False
        self.seal: str | None = None
        self.citations: list[Citation] = []

    def add(self, text: str, raw: str) -> None:
        self.text.append(text)
        self.raw.append(raw)

    def add_all(self, run: list[_Delta]) -> None:
        self.text.append("".join([event.text for event in run]))
        self.raw.append("".join([event.raw for event in run]))

    def end(self, raw: str) -> None:
        self.raw.append(raw)
        self.ended = True

    def block(self) -> OutputBlock:
        text, raw = "".join(self.text), "".join(self.raw)
        if self.open is not None:
            return ToolCallBlock(
                id=self.id,
                name=self.open.name,
                arguments=text,
                namespace=self.open.namespace,
                custom=self.open.custom,
                complete=self.ended,
                raw=raw,
                server=self.open.server,
            )
        if self.grows_by is TextDelta and self.citations:
            return CitedTextBlock(text, raw, tuple(self.citations))
        if self.grows_by is TextDelta:
            return TextBlock(text=text, raw=raw)
        return ReasoningBlock(text=text, seal=self.seal, raw=raw)


def fold(events: Iterable[Event], new_id: Callable[[CallOpen], str] | None = None) -> Message:
    """Fold all events of a stream into a message. `new_id` assigns the public ids of calls."""
    folding = Fold(new_id)
    for event in events:
        folding.add(event)
    return folding.message()


def _default_id(event: CallOpen) -> str:
    return event.id or f"call_{event.index}"
