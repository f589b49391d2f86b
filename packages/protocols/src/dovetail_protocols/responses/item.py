"""An output item in the stream: added, filled piece by piece, done. Once each, in that order.

Every item knows the frames of its own life. What a client needs to tell items apart stands in each
frame, so two items may be open at a time; the parts of a delta that do not change are made when the
item opens.
"""

import itertools

import msgspec

from dovetail_model import CallOpen, TokenLogprob
from dovetail_protocols.quoting import quoted, sound
from dovetail_protocols.responses import wire
from dovetail_protocols.sse import frame

_encode = msgspec.json.encode


class Frames:
    """Makes frames and counts them: `sequence_number` grows by one in every stream."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = itertools.count()

    def frame(self, kind: str, **fields: object) -> bytes:
        data = _encode({"type": kind, "sequence_number": next(self.count), **fields})
        return frame(data, kind.encode())


class Delta:
    """The frames of one kind of delta of one item."""

    __slots__ = ("_count", "_head", "_middle", "_tail")

    def __init__(self, frames: Frames, kind: str, place: dict[str, object], tail: bytes) -> None:
        self._count = frames.count
        self._head = f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":'.encode()
        self._middle = b"," + _encode(place)[1:-1] + b',"delta":'
        self._tail = tail + b"}\n\n"

    def frame(self, text: str) -> bytes:
        return b"%b%d%b%b%b" % (
            self._head, next(self._count), self._middle, quoted(text), self._tail,
        )  # fmt: skip


class Item:
    """What all items share. `final` is the item as it stands, under the status it then has."""

    __slots__ = ("_frames", "done", "id", "index", "pieces")
    prefix = ""

    def __init__(self, id: str, index: int, frames: Frames) -> None:
        self.id = id
        self.index = index
        self.pieces: list[str] = []
        self.done = False
        self._frames = frames

    @property
    def text(self) -> str:
        return sound("".join(self.pieces))

    @property
    def status(self) -> str:
        return "completed" if self.done else "incomplete"

    def final(self) -> wire.ItemOut:
        raise NotImplementedError

    def _added(self, item: wire.ItemOut) -> bytes:
        return self._frames.frame("response.output_item.added", output_index=self.index, item=item)

    def _done(self) -> bytes:
        self.done = True
        return self._frames.frame(
            "response.output_item.done", output_index=self.index, item=self.final()
        )

    def _tell(self, kind: str, **fields: object) -> bytes:
        """A frame about something inside the item."""
        return self._frames.frame(kind, item_id=self.id, output_index=self.index, **fields)

    def _place(self, **more: int) -> dict[str, object]:
        return {"item_id": self.id, "output_index": self.index, **more}


class MessageItem(Item):
    """Visible text: one message with one part."""

    __slots__ = ("_delta", "logprobs")
    prefix = "msg_"

    def __init__(self, id: str, index: int, frames: Frames) -> None:
        super().__init__(id, index, frames)
        self.logprobs: list[wire.Json] = []
        self._delta = Delta(
            frames,
            "response.output_text.delta",
            self._place(content_index=0),
            b',"logprobs":[]',
        )

    def open(self) -> bytes:
        return self._added(wire.MessageOut(self.id, "in_progress")) + self._tell(
            "response.content_part.added", content_index=0, part=wire.OutputText("")
        )

    def add(self, text: str) -> bytes:
        self.pieces.append(text)
        return self._delta.frame(text)

    def add_with(self, text: str, tokens: list[TokenLogprob]) -> bytes:
        """More text, with the log probabilities of its tokens."""
        self.pieces.append(text)
        told = [logprob(token) for token in tokens]
        self.logprobs += told
        return self._tell("response.output_text.delta", content_index=0, delta=text, logprobs=told)

    def close(self) -> bytes:
        part = self._part()
        return b"".join((
            self._tell(
                "response.output_text.done",
                content_index=0, text=part.text, logprobs=part.logprobs,
            ),
            self._tell("response.content_part.done", content_index=0, part=part),
            self._done(),
        ))  # fmt: skip

    def final(self) -> wire.MessageOut:
        return wire.MessageOut(self.id, self.status, content=(self._part(),))

    def _part(self) -> wire.OutputText:
        return wire.OutputText(self.text, logprobs=tuple(self.logprobs))


class ReasoningItem(Item):
    """A thought: its text as content and, for a client that asked, as a summary of one part."""

    __slots__ = ("_delta", "_summary", "_summary_delta", "seal")
    prefix = "rs_"

    def __init__(self, id: str, index: int, frames: Frames, summary: bool) -> None:
        super().__init__(id, index, frames)
        self.seal: str | None = None
        self._summary = summary
        self._delta = Delta(
            frames, "response.reasoning_text.delta", self._place(content_index=0), b""
        )
        self._summary_delta = Delta(
            frames, "response.reasoning_summary_text.delta", self._place(summary_index=0), b""
        )

    def open(self) -> bytes:
        out = [self._added(wire.ReasoningOut(self.id, "in_progress"))]
        if self._summary:
            part = wire.SummaryText("")
            out.append(
                self._tell("response.reasoning_summary_part.added", summary_index=0, part=part)
            )
        text = wire.ReasoningText("")
        out.append(self._tell("response.content_part.added", content_index=0, part=text))
        return b"".join(out)

    def add(self, text: str) -> bytes:
        self.pieces.append(text)
        if self._summary:
            return self._delta.frame(text) + self._summary_delta.frame(text)
        return self._delta.frame(text)

    def close(self, seal: str | None = None) -> bytes:
        self.seal = seal
        text = self.text
        part = wire.ReasoningText(text)
        out = [
            self._tell("response.reasoning_text.done", content_index=0, text=text),
            self._tell("response.content_part.done", content_index=0, part=part),
        ]
        if self._summary:
            out += [
                self._tell("response.reasoning_summary_text.done", summary_index=0, text=text),
                self._tell(
                    "response.reasoning_summary_part.done",
                    summary_index=0, part=wire.SummaryText(text),
                ),
            ]  # fmt: skip
        return b"".join((*out, self._done()))

    def final(self) -> wire.ReasoningOut:
        text = self.text
        summary = (wire.SummaryText(text),) if self._summary else ()
        return wire.ReasoningOut(
            self.id, self.status, summary, (wire.ReasoningText(text),), self.seal
        )


class CallItem(Item):
    """A call of a function. Its frames of `done` mean that a client may run it."""

    __slots__ = ("_call", "_delta")
    prefix = "fc_"
    events = "response.function_call_arguments"
    field = "arguments"

    def __init__(self, id: str, index: int, frames: Frames, call: CallOpen) -> None:
        super().__init__(id, index, frames)
        self._call = call
        self._delta = Delta(frames, f"{self.events}.delta", self._place(), b"")

    def open(self) -> bytes:
        return self._added(self._out("in_progress", ""))

    def add(self, text: str) -> bytes:
        self.pieces.append(text)
        return self._delta.frame(text)

    def close(self) -> bytes:
        return self._tell(f"{self.events}.done", **{self.field: self.text}) + self._done()

    def final(self) -> wire.ItemOut:
        return self._out(self.status, self.text)

    def _out(self, status: str, text: str) -> wire.ItemOut:
        call = self._call
        return wire.FunctionCallOut(
            self.id, status, call.id or "", call.name, text, call.namespace or msgspec.UNSET
        )


class CustomCallItem(CallItem):
    """A call of a custom tool: free text instead of arguments."""

    __slots__ = ()
    prefix = "ctc_"
    events = "response.custom_tool_call_input"
    field = "input"

    def _out(self, status: str, text: str) -> wire.ItemOut:
        call = self._call
        return wire.CustomCallOut(
            self.id, status, call.id or "", call.name, text, call.namespace or msgspec.UNSET
        )


def logprob(token: TokenLogprob) -> wire.Json:
    """One token as the API tells it."""
    top = [_likely(text, value) for text, value in token.top]
    return {**_likely(token.token, token.logprob), "top_logprobs": top}


def _likely(token: str, value: float) -> wire.Json:
    return {"token": token, "bytes": list(token.encode()), "logprob": value}
