"""A chat stream back into events: what an upstream server sent, or a recording.

The chunks do not say where a thought or a call ends. It ends where something else begins, or at
the finish; our own dispatch frames say it sooner. A call that the finish cut is left open.
"""

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
    TokenLogprob,
    Usage,
)
from dovetail_protocols.chat.chunk import Choice, Chunk, Delta, Fragment, Token
from dovetail_protocols.chat.error import kind_of
from dovetail_protocols.sse import ServerEvent, SseReader

_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refusal",
    "abort": "cancelled",
    "error": "error",
}
_decode = msgspec.json.Decoder(Chunk).decode


class ChatReader:
    """Reads one choice of a stream, in any pieces."""

    __slots__ = ("_call", "_choice", "_finish", "_out", "_over", "_span", "_sse", "_usage")

    def __init__(self, choice: int = 0) -> None:
        self._choice = choice
        self._sse = SseReader()
        self._out: list[Event] = []
        self._span = ""  # the kind of text that is open
        self._call = _Call(-1)
        self._usage = Usage()
        self._finish: Finish | None = None  # held: the usage may come behind it
        self._over = False

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that these bytes complete."""
        for event in self._sse.feed(chunk):
            if not self._over:
                self._take(event)
        return self._give()

    def whole(self, body: bytes) -> list[Event]:
        """The events of an answer that did not come as a stream."""
        self._take(ServerEvent("", body.decode("utf-8", "replace")))
        return self.finish()

    def finish(self) -> list[Event]:
        """The connection has ended: the events that are left."""
        if not self._over:
            self._end()
        return self._give()

    def _give(self) -> list[Event]:
        out, self._out = self._out, []
        return out

    def _take(self, event: ServerEvent) -> None:
        if event.event == "tool_call_dispatch":
            self._close_call()
        elif event.event == "reasoning_dispatch":
            self._close_span()
        elif event.data.startswith("[DONE]"):
            self._end()
        elif event.data:
            try:
                self._take_chunk(_decode(event.data))
            except (msgspec.DecodeError, RecursionError):
                self._out.append(Diagnostic("malformed_chunk"))

    def _take_chunk(self, chunk: Chunk) -> None:
        if chunk.error:
            self._fail(chunk.error)
            return
        for choice in chunk.choices or ():
            if (choice.index or 0) == self._choice:
                self._take_choice(choice)
        usage = self._usage if chunk.usage is None else chunk.usage.usage()
        if usage != self._usage:
            self._usage = usage
            self._out.append(usage)

    def _take_choice(self, choice: Choice) -> None:
        delta = choice.delta or choice.message or Delta()
        tokens = choice.logprobs.content if choice.logprobs else None
        said: list[Event] = [Logprobs(tuple(map(_token, tokens)))] if tokens else []
        if thought := delta.thought:
            self._say("reasoning", [*said, ReasoningDelta(thought)])
            said = []
        if text := delta.text:
            self._say("text", [*said, TextDelta(text)])
            said = []
        self._out += said
        for fragment in delta.tool_calls or ():
            self._take_fragment(fragment)
        if choice.finish_reason and self._finish is None:
            self._hold(choice.finish_reason, choice.stop_reason)

    def _say(self, span: str, events: list[Event]) -> None:
        self._close_call()
        if span != self._span:
            self._close_span()
        self._span = span
        self._out += events

    def _take_fragment(self, fragment: Fragment) -> None:
        """A new index or a new id is a new call. Its arguments wait until its name is known."""
        call = self._call
        if call.number < 0 or not call.owns(fragment):
            self._close_call()
            self._close_span()
            call = self._call = _Call(call.number + 1, fragment.index, fragment.id)
        if call.closed:
            self._out.append(Diagnostic("late_arguments"))
        else:
            self._out += call.take(fragment)

    def _hold(self, reason: str, stop: object) -> None:
        """Some servers say `stop` although calls wait to be run."""
        found = _REASONS.get(reason, "stop")
        if found in ("stop", "tool_calls"):
            self._close_call()
        if found == "stop" and self._call.opened:
            found = "tool_calls"
        self._close_span()
        if found == "stop" and isinstance(stop, str):
            self._finish = Finish("stop_sequence", stop)
        else:
            self._finish = Finish(found)

    def _end(self) -> None:
        self._over = True
        if self._finish is not None:
            self._out.append(self._finish)
        else:
            self._out.append(Failure("engine_unavailable", "The stream ended before its answer."))

    def _fail(self, error: dict[str, Any] | str) -> None:
        self._over = True
        told = error if isinstance(error, dict) else {"message": error}
        message, param = told.get("message"), told.get("param")
        self._out.append(
            Failure(
                kind_of(told),
                message if isinstance(message, str) else "The server failed.",
                param if isinstance(param, str) else None,
            )
        )

    def _close_span(self) -> None:
        if self._span:
            self._out.append(SpanEnd("text" if self._span == "text" else "reasoning"))
        self._span = ""

    def _close_call(self) -> None:
        self._out += self._call.close()


class _Call:
    """A call in the making. Number -1 is the one before the first."""

    __slots__ = ("_held", "_id", "_index", "closed", "number", "opened")

    def __init__(self, number: int, index: int | None = None, id: str | None = None) -> None:
        self.number = number
        self.opened = False
        self.closed = number < 0
        self._index = index
        self._id = id
        self._held: list[str] = []

    def owns(self, fragment: Fragment) -> bool:
        """Whether the fragment goes on with this call. Without index and id only a name tells."""
        if fragment.id and self._id:
            same = fragment.id == self._id
            return same and (fragment.index == self._index or fragment.index is None)
        if fragment.index is None:
            return not (fragment.name and self.opened)
        return fragment.index == self._index

    def take(self, fragment: Fragment) -> list[Event]:
        out: list[Event] = []
        if fragment.text:
            self._held.append(fragment.text)
        if not self.opened and fragment.name:
            self.opened = True
            id = self._id or fragment.id
            out.append(CallOpen(self.number, fragment.name, id, custom=fragment.custom is not None))
        if self.opened and self._held:
            out.append(CallArgs(self.number, "".join(self._held)))
            self._held = []
        return out

    def close(self) -> list[Event]:
        if self.closed:
            return []
        self.closed = True
        return [CallClose(self.number)] if self.opened else [Diagnostic("nameless_call")]


def _token(token: Token) -> TokenLogprob:
    top = tuple((each.token, each.logprob) for each in token.top_logprobs or ())
    return TokenLogprob(token.token, token.logprob, top)
