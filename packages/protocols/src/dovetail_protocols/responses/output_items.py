"""Output items of a stream: each is added, filled with deltas, and done, in that order.

Every item encodes its own frames. Each frame identifies its item, so several items may be open at a
time. The delta run of an item is built together with the item.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dovetail_model import (
    CallArgs,
    CallOpen,
    Event,
    HostedItem,
    ReasoningDelta,
    ResponseBlock,
    ServerToolResult,
    TextDelta,
    TokenLogprob,
    ToolCallBlock,
)
from dovetail_protocols.delta_run import DeltaRun
from dovetail_protocols.json_strings import encode_json_string, replace_surrogates
from dovetail_protocols.responses import wire
from dovetail_protocols.sse import frame

_encode = msgspec.json.encode
_TAILS: dict[type, bytes] = {TextDelta: b',"logprobs":[]}\n\n'}


class FrameWriter:
    """Builds and counts frames: `sequence_number` increases by one with each frame of a stream."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = itertools.count()

    def frame(self, kind: str, **fields: object) -> bytes:
        data = _encode({"type": kind, "sequence_number": next(self.count), **fields})
        return frame(data, kind.encode())


class OutputItem:
    """Base class of items. `final` is the item in its current state and status."""

    __slots__ = ("done", "frames", "id", "index", "pieces")
    prefix = ""

    def __init__(self, id: str, index: int, frames: FrameWriter) -> None:
        self.id = id
        self.index = index
        self.pieces: list[str] = []
        self.done = False
        self.frames = frames

    @property
    def text(self) -> str:
        return replace_surrogates("".join(self.pieces))

    @property
    def status(self) -> str:
        return "completed" if self.done else "incomplete"

    def final(self) -> wire.ItemOut:
        raise NotImplementedError

    def _added(self, item: wire.ItemOut) -> bytes:
        return self.frames.frame("response.output_item.added", output_index=self.index, item=item)

    def _done(self) -> bytes:
        self.done = True
        return self.frames.frame(
            "response.output_item.done", output_index=self.index, item=self.final()
        )

    def _encode_frame(self, kind: str, **fields: object) -> bytes:
        """Encode a frame about a part of the item."""
        return self.frames.frame(kind, item_id=self.id, output_index=self.index, **fields)

    def position(self, **more: int) -> dict[str, object]:
        """Return the fields that identify the item and a position in it."""
        return {"item_id": self.id, "output_index": self.index, **more}


class ItemDeltaRun(DeltaRun):
    """Deltas of an item: the item collects their text, and each frame gets its number."""

    __slots__ = ("_count", "_middle", "_pieces")

    def __init__(
        self,
        item: OutputItem,
        kind: type[Event],
        name: str,
        *,
        call: int | None = None,
        **place: int,
    ) -> None:
        head = f'event: {name}\ndata: {{"type":"{name}","sequence_number":'.encode()
        super().__init__(kind, head, _TAILS.get(kind, b"}\n\n"), call=call)
        self._count = item.frames.count
        self._middle = b"," + _encode(item.position(**place))[1:-1] + b',"delta":'
        self._pieces = item.pieces

    def frame(self, text: str) -> bytes:
        try:
            encoded = _encode(text)
        except UnicodeEncodeError:
            encoded = _encode(replace_surrogates(text))
        self._pieces.append(text)
        # Formatting the number with %d would cost more than everything else once caches are cold.
        return self.head + _encode(next(self._count)) + self._middle + encoded + self.tail


class ReasoningDeltaRun(ItemDeltaRun):
    """Deltas of reasoning, repeated as deltas of its summary."""

    __slots__ = ("_summary",)

    def __init__(self, item: OutputItem, kind: type[Event], name: str) -> None:
        super().__init__(item, kind, name, content_index=0)
        self._summary = ItemDeltaRun(
            item, kind, "response.reasoning_summary_text.delta", summary_index=0
        )

    def frame(self, text: str) -> bytes:
        content, summary = super().frame(text), self._summary
        number = _encode(next(self._count))
        return (
            content
            + summary.head
            + number
            + summary._middle
            + encode_json_string(text)
            + summary.tail
        )


class MessageItem(OutputItem):
    """Visible text: one message with one part."""

    __slots__ = ("annotations", "logprobs", "run")
    prefix = "msg_"

    def __init__(self, id: str, index: int, frames: FrameWriter) -> None:
        super().__init__(id, index, frames)
        self.logprobs: list[wire.Json] = []
        self.annotations: list[wire.Json] = []
        self.run = ItemDeltaRun(self, TextDelta, "response.output_text.delta", content_index=0)

    def open(self) -> bytes:
        return self._added(wire.MessageOut(self.id, "in_progress")) + self._encode_frame(
            "response.content_part.added", content_index=0, part=wire.OutputText("")
        )

    def add_with(self, text: str, tokens: list[TokenLogprob]) -> bytes:
        """Encode more text with the log probabilities of its tokens."""
        self.pieces.append(text)
        logprobs = [logprob_out(token) for token in tokens]
        self.logprobs += logprobs
        return self._encode_frame(
            "response.output_text.delta",
            content_index=0,
            delta=replace_surrogates(text),
            logprobs=logprobs,
        )

    def annotate(self, annotation: wire.Json) -> bytes:
        """Encode an annotation of the text so far."""
        self.annotations.append(annotation)
        return self._encode_frame(
            "response.output_text.annotation.added",
            content_index=0,
            annotation_index=len(self.annotations) - 1,
            annotation=annotation,
        )

    def close(self) -> bytes:
        part = self._part()
        return b"".join((
            self._encode_frame(
                "response.output_text.done",
                content_index=0, text=part.text, logprobs=part.logprobs,
            ),
            self._encode_frame("response.content_part.done", content_index=0, part=part),
            self._done(),
        ))  # fmt: skip

    def final(self) -> wire.MessageOut:
        return wire.MessageOut(self.id, self.status, content=(self._part(),))

    def _part(self) -> wire.OutputText:
        return wire.OutputText(self.text, tuple(self.annotations), tuple(self.logprobs))


class ReasoningItem(OutputItem):
    """Reasoning: its text as content and, on request, as a summary with one part."""

    __slots__ = ("_summary", "run", "seal")
    prefix = "rs_"

    def __init__(self, id: str, index: int, frames: FrameWriter, summary: bool) -> None:
        super().__init__(id, index, frames)
        self.seal: str | None = None
        self._summary = summary
        name = "response.reasoning_text.delta"
        self.run: DeltaRun
        if summary:
            self.run = ReasoningDeltaRun(self, ReasoningDelta, name)
        else:
            self.run = ItemDeltaRun(self, ReasoningDelta, name, content_index=0)

    def open(self) -> bytes:
        out = [self._added(wire.ReasoningOut(self.id, "in_progress"))]
        if self._summary:
            part = wire.SummaryText("")
            out.append(
                self._encode_frame(
                    "response.reasoning_summary_part.added", summary_index=0, part=part
                )
            )
        text = wire.ReasoningText("")
        out.append(self._encode_frame("response.content_part.added", content_index=0, part=text))
        return b"".join(out)

    def close(self, seal: str | None = None) -> bytes:
        self.seal = seal
        text = self.text
        part = wire.ReasoningText(text)
        out = [
            self._encode_frame("response.reasoning_text.done", content_index=0, text=text),
            self._encode_frame("response.content_part.done", content_index=0, part=part),
        ]
        if self._summary:
            out += [
                self._encode_frame(
                    "response.reasoning_summary_text.done", summary_index=0, text=text
                ),
                self._encode_frame(
                    "response.reasoning_summary_part.done",
                    summary_index=0, part=wire.SummaryText(text),
                ),
            ]  # fmt: skip
        return b"".join((*out, self._done()))

    def final(self) -> wire.ReasoningOut:
        text = self.text
        summary = (wire.SummaryText(text),) if self._summary else ()
        return wire.ReasoningOut(
            self.id, self.status, summary, (wire.ReasoningText(text),), self.seal or msgspec.UNSET
        )


class CallItem(OutputItem):
    """A function call. Its `done` frames mean that a client may run it."""

    __slots__ = ("_call", "run")
    prefix = "fc_"
    events = "response.function_call_arguments"
    field = "arguments"

    def __init__(self, id: str, index: int, frames: FrameWriter, call: CallOpen) -> None:
        super().__init__(id, index, frames)
        self._call = call
        self.run = ItemDeltaRun(self, CallArgs, f"{self.events}.delta", call=call.index)

    def open(self) -> bytes:
        return self._added(self._out("in_progress", ""))

    def close(self) -> bytes:
        return self._encode_frame(f"{self.events}.done", **{self.field: self.text}) + self._done()

    def final(self) -> wire.ItemOut:
        return self._out(self.status, self.text)

    def _out(self, status: str, text: str) -> wire.ItemOut:
        call = self._call
        return wire.FunctionCallOut(
            self.id, status, call.id or "", call.name, text, call.namespace or msgspec.UNSET
        )


class CustomCallItem(CallItem):
    """A call of a custom tool, with free text instead of arguments."""

    __slots__ = ()
    prefix = "ctc_"
    events = "response.custom_tool_call_input"
    field = "input"

    def _out(self, status: str, text: str) -> wire.ItemOut:
        call = self._call
        return wire.CustomCallOut(
            self.id, status, call.id or "", call.name, text, call.namespace or msgspec.UNSET
        )


class SilentRun(ItemDeltaRun):
    """Deltas of an item whose arguments have no delta frames: they are only collected."""

    __slots__ = ()

    def frame(self, text: str) -> bytes:
        self._pieces.append(text)
        return b""


class ToolSearchItem(CallItem):
    """A search for tools that the client runs."""

    __slots__ = ()
    prefix = "tsc_"

    def __init__(self, id: str, index: int, frames: FrameWriter, call: CallOpen) -> None:
        super().__init__(id, index, frames, call)
        self.run = SilentRun(self, CallArgs, "", call=call.index)

    def close(self) -> bytes:
        return self._done()

    def _out(self, status: str, text: str) -> wire.ItemOut:
        return wire.ToolSearchCallOut(self.id, status, self._call.id or "", _json_object(text))


def _json_object(text: str) -> msgspec.Raw:
    """Return JSON text as it is; incomplete arguments are an empty object."""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return msgspec.Raw(b"{}")
    return msgspec.Raw(text.encode())


def logprob_out(token: TokenLogprob) -> wire.Json:
    """Convert one token to the API's form."""
    top = [_top_logprob_out(text, value) for text, value in token.top]
    return {**_top_logprob_out(token.token, token.logprob), "top_logprobs": top}


def _top_logprob_out(token: str, value: float) -> wire.Json:
    return {"token": token, "bytes": list(token.encode()), "logprob": value}


class HostedOutputItem(OutputItem):
    """An item of a tool that an upstream server ran, passed on with the frames about it."""

    __slots__ = ("_item",)

    def __init__(self, index: int, frames: FrameWriter, item: Mapping[str, Any]) -> None:
        super().__init__(str(item.get("id", "")), index, frames)
        self._item = item

    def write(self, event: HostedItem) -> bytes:
        """Encode a frame about the item."""
        self._item = event.item or self._item
        self.done = self.done or event.kind == "response.output_item.done"
        if event.item is not None:
            return self.frames.frame(
                event.kind, output_index=self.index, item=event.item, **event.fields
            )
        return self._encode_frame(event.kind, **event.fields)

    def final(self) -> Mapping[str, Any]:
        return self._item


class TokenSplitter:
    """Assigns the tokens in a message's flat list to its blocks."""

    __slots__ = ("_at", "_ends", "_text", "_tokens")

    def __init__(self, tokens: Sequence[TokenLogprob]) -> None:
        self._tokens = tokens
        self._text = "".join(token.token for token in tokens)
        self._ends = {0: 0}  # offset in the text -> number of tokens before it
        length = 0
        for count, token in enumerate(tokens, 1):
            length += len(token.token)
            self._ends[length] = count
        self._at = 0

    def take(self, block: ResponseBlock) -> Sequence[TokenLogprob]:
        """Return the tokens whose text is exactly the block's, after those already taken."""
        if not self._tokens or isinstance(block, ServerToolResult):
            return ()
        text = block.arguments if isinstance(block, ToolCallBlock) else block.text
        start = self._text.find(text, self._at)
        end = start + len(text)
        if start not in self._ends or end not in self._ends:
            return ()
        self._at = end
        return self._tokens[self._ends[start] : self._ends[end]]
