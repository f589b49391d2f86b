"""Decode a chat stream into events: the response of an upstream server, or a recording.

The chunks do not mark the end of reasoning or of a call: it ends where something else starts, or at
the finish; Dovetail's own dispatch frames mark it earlier. A call that the finish truncates stays
open.
"""

from typing import Any

import msgspec

from dovetail_model import (
    Diagnostic,
    Event,
    Failure,
    Finish,
    FinishReason,
    Logprobs,
    ReasoningDelta,
    ResponseFields,
    SpanEnd,
    TextDelta,
    TokenLogprob,
    Usage,
)
from dovetail_protocols.chat.chunk import (
    CallFragment,
    ChatChunk,
    ChunkChoice,
    ChunkDelta,
    ChunkToken,
    salvage_chunk,
)
from dovetail_protocols.chat.fragments import CallAssembler
from dovetail_protocols.chat.web_search import read_annotations
from dovetail_protocols.openai_error import error_kind
from dovetail_protocols.sse import ServerEvent, SseReader

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refusal",
    "abort": "cancelled",
    "error": "error",
}
_decode = msgspec.json.Decoder(ChatChunk).decode


class ChatReader:
    """Reads one choice of a stream, in chunks of any size."""

    __slots__ = (
        "_calls",
        "_choice",
        "_citations",
        "_finish",
        "_length",
        "_out",
        "_over",
        "_server",
        "_span",
        "_span_start",
        "_sse",
        "_usage",
    )

    def __init__(self, choice: int = 0) -> None:
        self._choice = choice
        self._sse = SseReader()
        self._out: list[Event] = []
        self._span = ""  # kind of the open span
        self._calls = CallAssembler()
        self._usage = Usage()
        self._finish: Finish | None = None  # held back: usage may follow it
        self._over = False
        self._length = self._span_start = 0  # characters of text, all and before the open span
        self._citations = 0
        self._server: tuple[str | None, str | None] = (None, None)

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that these bytes complete."""
        for event in self._sse.feed(chunk):
            if not self._over:
                self._take(event)
        return self._take_events()

    def whole(self, body: bytes) -> list[Event]:
        """Decode a non-streaming response."""
        self._take(ServerEvent("", body.decode("utf-8", "replace")))
        return self.finish()

    def finish(self) -> list[Event]:
        """Return the remaining events after the connection has closed."""
        if not self._over:
            self._end()
        return self._take_events()

    def _take_events(self) -> list[Event]:
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
            self._take_chunk(self._decoded(event.data))

    def _decoded(self, data: str) -> ChatChunk:
        """Decode a chunk. Invalid fields are reported; valid ones are used."""
        try:
            return _decode(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self._out.append(Diagnostic("malformed_chunk"))
            return salvage_chunk(data)

    def _take_chunk(self, chunk: ChatChunk) -> None:
        if chunk.error:
            self._fail(chunk.error)
            return
        if (chunk.service_tier, chunk.system_fingerprint) != self._server:
            self._take_server(chunk)
        for choice in chunk.choices or ():
            if (choice.index or 0) == self._choice:
                self._take_choice(choice)
        usage = self._usage if chunk.usage is None else chunk.usage.usage()
        if usage != self._usage:
            self._usage = usage
            self._out.append(usage)

    def _take_server(self, chunk: ChatChunk) -> None:
        """Pass on what the server returns about itself. Some servers send it only once."""
        tier, fingerprint = self._server
        self._server = (chunk.service_tier or tier, chunk.system_fingerprint or fingerprint)
        names = ("service_tier", "system_fingerprint")
        found = {name: value for name, value in zip(names, self._server, strict=True) if value}
        if found and self._server != (tier, fingerprint):
            self._out.append(ResponseFields("chat", found))

    def _take_choice(self, choice: ChunkChoice) -> None:
        delta = choice.delta or choice.message or ChunkDelta()
        tokens = choice.logprobs.content if choice.logprobs else None
        logprobs: list[Event] = [Logprobs(tuple(map(_token, tokens)))] if tokens else []
        if reasoning := delta.reasoning_text:
            self._append_delta("reasoning", [*logprobs, ReasoningDelta(reasoning)])
            logprobs = []
        if text := delta.text:
            self._append_delta("text", [*logprobs, TextDelta(text)])
            self._length += len(text)
            logprobs = []
        self._out += logprobs
        if delta.annotations:
            self._take_annotations(delta.annotations)
        for fragment in delta.tool_calls or ():
            self._take_fragment(fragment)
        if choice.finish_reason and self._finish is None:
            self._hold_finish(choice.finish_reason, choice.stop_reason)

    def _append_delta(self, span: str, events: list[Event]) -> None:
        self._close_call()
        if span != self._span:
            self._close_span()
            self._span_start = self._length
        self._span = span
        self._out += events

    def _take_annotations(self, value: object) -> None:
        """Emit references to web pages. Servers count characters of the whole message."""
        for citation in read_annotations(value, self._citations + 1, self._span_start):
            if self._span != "text" or citation.start < 0:
                self._out.append(Diagnostic("late_annotation"))
                continue
            self._citations += 1
            self._out.append(citation)

    def _take_fragment(self, fragment: CallFragment) -> None:
        if self._calls.is_first(fragment):
            self._close_span()
        self._out += self._calls.add(fragment)

    def _hold_finish(self, reason: str, stop: object) -> None:
        """Hold back the finish. Some servers send `stop` although there are calls to run."""
        found = _FINISH_REASONS.get(reason, "stop")
        self._out += self._calls.close(truncated=found not in ("stop", "tool_calls"))
        if found == "stop" and self._calls.opened:
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
            self._out += self._calls.close(truncated=True)
            self._out.append(
                Failure(
                    "engine_unavailable",
                    "The upstream server closed the stream before the end of the response.",
                )
            )

    def _fail(self, error: dict[str, Any] | str) -> None:
        self._over = True
        self._out += self._calls.close(truncated=True)
        fields = error if isinstance(error, dict) else {"message": error}
        message, param = fields.get("message"), fields.get("param")
        self._out.append(
            Failure(
                error_kind(fields),
                message if isinstance(message, str) else "The upstream server reported an error.",
                param if isinstance(param, str) else None,
            )
        )

    def _close_span(self) -> None:
        if self._span:
            self._out.append(SpanEnd("text" if self._span == "text" else "reasoning"))
        self._span = ""

    def _close_call(self) -> None:
        self._out += self._calls.close()


def _token(token: ChunkToken) -> TokenLogprob:
    top = tuple((each.token, each.logprob) for each in token.top_logprobs or ())
    return TokenLogprob(token.token, token.logprob, top)
