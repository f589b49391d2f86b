"""The one way from a stream of events to a finished message.

Streaming is the only implementation; whoever wants the whole answer folds the stream. What a
cut call means is decided here, once, for every API.
"""

from collections.abc import Callable, Iterable

import msgspec

from dovetail_model.block import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock
from dovetail_model.event import (
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
    TokenLogprob,
)
from dovetail_model.usage import Usage


class Message(msgspec.Struct, frozen=True):
    """A finished answer: blocks in the order the model spoke, why it ended, what it cost.

    `raw` is all that the model wrote. Where there are blocks, their raws joined are the same text.
    """

    blocks: tuple[OutputBlock, ...] = ()
    finish: FinishReason = "stop"
    stop_sequence: str | None = None
    usage: Usage = Usage()
    diagnostics: tuple[Diagnostic, ...] = ()
    failure: Failure | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    raw: str = ""


class Fold:
    """Takes events one by one and gives the message they make so far."""

    __slots__ = (
        "_diagnostics",
        "_failure",
        "_finish",
        "_lead",
        "_logprobs",
        "_new_id",
        "_parts",
        "_usage",
    )

    def __init__(self, new_id: Callable[[CallOpen], str] | None = None) -> None:
        self._new_id = new_id or _own_id
        self._parts: list[_Part] = []
        self._lead: list[str] = []  # raw text that came before any block
        self._finish: Finish | None = None
        self._usage = Usage()
        self._failure: Failure | None = None
        self._diagnostics: list[Diagnostic] = []
        self._logprobs: list[TokenLogprob] = []

    def add(self, event: Event) -> None:
        match event:
            case TextDelta(text=text, raw=raw):
                self._span("text").add(text, raw)
            case ReasoningDelta(text=text, raw=raw):
                self._span("reasoning").add(text, raw)
            case SpanEnd(raw=raw, seal=seal):
                self._end_span(raw, seal)
            case CallOpen(raw=raw):
                self._part(_Part("tool_call", event, self._new_id(event))).add("", raw)
            case CallArgs(index=index, text=text, raw=raw):
                self._call(index).add(text, raw)
            case CallClose(index=index, raw=raw):
                self._call(index).end(raw)
            case Usage() | Logprobs() | Finish() | Diagnostic() | Failure():
                self._note(event)

    def _note(self, event: Usage | Logprobs | Finish | Diagnostic | Failure) -> None:
        """Events about the message, not of it."""
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

    def message(self) -> Message:
        blocks = tuple(part.block() for part in self._parts)
        finish = self._finish or Finish(self._reason(blocks))
        return Message(
            blocks=blocks,
            finish=finish.reason,
            stop_sequence=finish.stop_sequence,
            usage=self._usage,
            diagnostics=tuple(self._diagnostics),
            failure=self._failure,
            logprobs=tuple(self._logprobs),
            raw="".join(self._lead) + "".join(block.raw for block in blocks),
        )

    def _reason(self, blocks: tuple[OutputBlock, ...]) -> FinishReason:
        """Why it ended, where nobody said so: a cut call was cut, a complete one waits to run."""
        if self._failure is not None:
            return "error"
        calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
        if calls and not calls[-1].complete:
            return "length"
        return "tool_calls" if calls else "stop"

    def _span(self, kind: str) -> "_Part":
        last = self._parts[-1] if self._parts else None
        if last is not None and last.kind == kind and not last.ended:
            return last
        return self._part(_Part(kind))

    def _part(self, part: "_Part") -> "_Part":
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
        if last.kind == "tool_call":
            last.raw.append(raw)
        else:
            last.end(raw)
            last.seal = seal or last.seal

    def _call(self, index: int) -> "_Part":
        for part in reversed(self._parts):
            if part.open is not None and part.open.index == index:
                return part
        raise LookupError(f"no call {index} was opened")


class _Part:
    """A block in the making."""

    __slots__ = ("ended", "id", "kind", "open", "raw", "seal", "text")

    def __init__(self, kind: str, opened: CallOpen | None = None, id: str = "") -> None:
        self.kind = kind
        self.open = opened
        self.id = id
        self.text: list[str] = []
        self.raw: list[str] = []
        self.ended = False
        self.seal: str | None = None

    def add(self, text: str, raw: str) -> None:
        self.text.append(text)
        self.raw.append(raw)

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
            )
        if self.kind == "text":
            return TextBlock(text=text, raw=raw)
        return ReasoningBlock(text=text, seal=self.seal, raw=raw)


def fold(events: Iterable[Event], new_id: Callable[[CallOpen], str] | None = None) -> Message:
    """The message that a whole stream of events makes. `new_id` gives calls their outward ids."""
    folding = Fold(new_id)
    for event in events:
        folding.add(event)
    return folding.message()


def _own_id(event: CallOpen) -> str:
    return event.id or f"call_{event.index}"
