"""Encode events as the chunks of a chat stream.

The constant bytes of a chunk are built once; a delta costs the encoding of its text and a join.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dovetail_model import (
    CallArgs,
    CallOpen,
    Citation,
    Event,
    Finish,
    Logprobs,
    ReasoningDelta,
    Request,
    ResponseFields,
    ServerToolResult,
    SpanEnd,
    TextDelta,
    TokenLogprob,
    Usage,
)
from dovetail_protocols.chat.choices import ChoiceStream
from dovetail_protocols.chat.decode import ChatEcho
from dovetail_protocols.chat.outcome import FINISH_REASONS, encode_logprobs
from dovetail_protocols.chat.segments import ReasoningSegments
from dovetail_protocols.chat.web_search import JoinedText, has_search
from dovetail_protocols.chat.wire import AnnotationOut
from dovetail_protocols.codec import Clock, IdFactory
from dovetail_protocols.delta_run import NO_RUN, DeltaRun
from dovetail_protocols.dispatch import Dispatcher
from dovetail_protocols.json_strings import encode_json_string, replace_surrogates

_encode = msgspec.json.encode
#: What a response repeats of an upstream server's.
SERVER_FIELDS = ("service_tier", "system_fingerprint")
_DELTA_END = b'},"logprobs":null,"finish_reason":null}]}\n\n'


class ChatStream(ChoiceStream):
    """Encodes the chunks of one response. The roles of all choices come first, in order."""

    __slots__ = ("_identity", "_reasoning_field", "_request")

    def __init__(
        self, request: Request, ids: IdFactory, clock: Clock, reasoning_field: str
    ) -> None:
        echo = chat_echo(request)
        self._request = request
        self._reasoning_field = reasoning_field
        self._identity = (ids("chatcmpl-"), int(clock()))
        head = self._build_head({"service_tier": "default"} if echo.service_tier else {})
        choices = self._build_choices(head)
        roles = b"".join(choice.role() for choice in choices)
        super().__init__(head, choices, echo.include_usage, roles)

    def _encode(self, events: Sequence[Event], choice: int) -> bytes:
        if events and type(events[0]) is ResponseFields:
            self._set_server(events[0].fields)
            events = events[1:]
        return super()._encode(events, choice)

    def _set_server(self, fields: Mapping[str, Any]) -> None:
        """Repeat what an upstream server returned, from the first chunk on if that is not sent."""
        self._head = self._build_head(fields)
        if self._opening:
            choices = self._build_choices(self._head)
            self._choices = choices
            self._opening = b"".join(choice.role() for choice in choices)

    def _build_choices(self, head: bytes) -> "list[_ChatChoiceWriter]":
        return [
            _ChatChoiceWriter(head, at, self._request, self._reasoning_field)
            for at in range(self._request.sampling.n)
        ]

    def _build_head(self, server: Mapping[str, Any]) -> bytes:
        id, created = self._identity
        head = b'data: {"id":%s,"object":"chat.completion.chunk","created":%d,"model":%s' % (
            _encode(id),
            created,
            _encode(self._request.model),
        )
        for name in SERVER_FIELDS:
            if server.get(name) is not None:
                head += b',"%s":%s' % (name.encode(), _encode(server[name]))
        return head + b","


class _ChatChoiceWriter:
    """Writes the chunks of one choice."""

    __slots__ = (
        "_annotations",
        "_arguments",
        "_at",
        "_client_calls",
        "_content",
        "_dispatcher",
        "_joined",
        "_logprobs",
        "_reasoning",
        "_segments",
        "_start",
        "_text_ended",
        "_top",
        "finished",
        "run",
        "usage",
    )

    def __init__(self, head: bytes, at: int, request: Request, reasoning_field: str) -> None:
        self._start = head + b'"choices":[{"index":%d,"delta":{' % at
        self._at = at
        self._content = self._deltas(TextDelta, b"content")
        self._reasoning = self._deltas(ReasoningDelta, reasoning_field.encode())
        self._arguments: dict[int, DeltaRun] = {}
        self._client_calls = 0  # calls of server tools are not shown and not counted
        self._annotations: list[AnnotationOut] = []
        self._joined = JoinedText() if has_search(request) else None
        self._text_ended = False
        dispatcher = Dispatcher(request.hints, at)
        self._dispatcher = dispatcher if dispatcher.active else None
        self._segments = ReasoningSegments() if chat_echo(request).segments else None
        self._top = request.sampling.logprobs
        self._logprobs: list[TokenLogprob] = []  # sent with the next chunk
        self.usage = Usage()
        self.finished = False
        self.run = NO_RUN

    def role(self) -> bytes:
        return self._start + b'"role":"assistant","content":""' + _DELTA_END

    def write(self, event: Event) -> bytes:
        match event:
            case TextDelta(text=text):
                if self._joined is not None:
                    text = self._joined.add(text)
                chunk = self._encode_delta(self._content, text)
            case ReasoningDelta(text=text):
                chunk = self._encode_delta(self._reasoning, text)
                if self._segments is not None:
                    self._segments.add_reasoning(text)
            case CallArgs(index=index, text=text):
                run = self._arguments.get(index, NO_RUN)
                chunk = self._encode_delta(run, text) if run is not NO_RUN else b""
            case _:
                self.run = NO_RUN
                chunk = self._encode_other(event)
        if self._dispatcher is not None:
            chunk += self._dispatcher.observe(event)
        return chunk

    def _encode_delta(self, run: DeltaRun, text: str) -> bytes:
        """Encode a delta. The next one may continue the run if no dispatcher observes deltas."""
        if self._dispatcher is None and self._segments is None and self._joined is None:
            self.run = run
        chunk = run.frame(text)
        return chunk.removesuffix(_DELTA_END) + self._tail() if self._logprobs else chunk

    def _deltas(self, kind: type[Event], field: bytes) -> DeltaRun:
        return DeltaRun(kind, self._start + b'"%s":' % field, _DELTA_END, choice=self._at)

    def _encode_other(self, event: Event) -> bytes:
        if self._joined is not None:
            return self._encode_with_searches(event, self._joined)
        return self._encode_plain(event)

    def _encode_with_searches(self, event: Event, joined: JoinedText) -> bytes:
        """Encode an event of a response with server tools. Their calls are not shown."""
        match event:
            case Citation():
                self._annotations.append(joined.annotate(event))
            case ServerToolResult():
                joined.end_turn()
            case SpanEnd() | CallOpen():
                joined.end_block()
        return b"" if isinstance(event, CallOpen) and event.server else self._encode_plain(event)

    def _encode_plain(self, event: Event) -> bytes:
        match event:
            case CallOpen():
                return self._open(event)
            case Usage():
                self.usage = event
            case Logprobs(tokens=tokens) if self._top is not None:
                self._logprobs += tokens
            case Citation() if self._joined is None and not self._text_ended:
                self._annotations.append(JoinedText().annotate(event))  # the text starts at 0
            case SpanEnd(kind="text"):
                self._text_ended = True
            case Finish():
                return self._encode_annotations() + self._finish(event)
        return b""

    def _encode_annotations(self) -> bytes:
        """Encode all in one chunk: the official SDK cannot join lists without an index."""
        if not self._annotations:
            return b""
        return self._start + b'"annotations":' + _encode(self._annotations) + _DELTA_END

    def _open(self, call: CallOpen) -> bytes:
        """Encode the only chunk with the call's id and name: clients join repeated fields."""
        if self._segments is not None:
            self._segments.start_call()
        kind, text = (b"custom", b"input") if call.custom else (b"function", b"arguments")
        index = self._start + b'"tool_calls":[{"index":%d,' % self._client_calls
        self._client_calls += 1
        before = index + b'"%s":{"%s":' % (kind, text)
        self._arguments[call.index] = DeltaRun(
            CallArgs, before, b"}}]" + _DELTA_END, call=call.index, choice=self._at
        )
        id, name = _encode(call.id or f"call_{call.index}"), encode_json_string(call.name)
        opened = b'"id":%s,"type":"%s","%s":{"name":%s,"%s":""}}]' % (id, kind, kind, name, text)
        return index + opened + self._tail()

    def _tail(self) -> bytes:
        if not self._logprobs:
            return _DELTA_END
        return b"}," + self._take_logprobs() + b',"finish_reason":null}]}\n\n'

    def _take_logprobs(self) -> bytes:
        if not self._logprobs:
            return b'"logprobs":null'
        encoded = encode_logprobs(self._logprobs, self._top or 0)
        self._logprobs = []
        return b'"logprobs":' + encoded

    def _finish(self, finish: Finish) -> bytes:
        self.finished = True
        delta = b""
        if self._segments is not None:
            delta = b'"reasoning_segments":' + _encode(
                [replace_surrogates(text) for text in self._segments.texts()]
            )
        reason = b',"finish_reason":"%s"' % FINISH_REASONS[finish.reason].encode()
        if finish.stop_sequence is not None:
            reason += b',"stop_reason":' + _encode(finish.stop_sequence)
        return self._start + delta + b"}," + self._take_logprobs() + reason + b"}]}\n\n"


def chat_echo(request: Request) -> ChatEcho:
    """Return the echo of the request, or a default one if another codec decoded it."""
    return request.echo if isinstance(request.echo, ChatEcho) else ChatEcho()
