"""Encode events as the chunks of a text completion, or as a complete one.

No parser runs on a raw completion, so all of its output is text, including reasoning.
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from dovetail_model import (
    Event,
    Finish,
    Logprobs,
    Message,
    ReasoningBlock,
    ReasoningDelta,
    Request,
    TextBlock,
    TextDelta,
    TokenLogprob,
    Usage,
)
from dovetail_protocols.chat.choices import ChoiceStream
from dovetail_protocols.chat.outcome import (
    FINISH_REASONS,
    clamp_logprob,
    combine_usage,
    require_complete,
)
from dovetail_protocols.codec import Clock, IdFactory
from dovetail_protocols.completions.decode import CompletionEcho
from dovetail_protocols.completions.wire import (
    CompletionChoiceOut,
    CompletionLogprobsOut,
    CompletionOut,
)
from dovetail_protocols.delta_run import NO_RUN, DeltaRun
from dovetail_protocols.json_strings import encode_json_string

_encode = msgspec.json.encode
_FINISH_REASONS = {**FINISH_REASONS, "tool_calls": "stop"}
_DELTA_END = b',"logprobs":null,"finish_reason":null}]}\n\n'


class CompletionStream(ChoiceStream):
    """Encodes the chunks of one response."""

    __slots__ = ()

    def __init__(self, request: Request, ids: IdFactory, clock: Clock) -> None:
        head = b'data: {"id":%s,"object":"text_completion","created":%d,"model":%s,' % (
            _encode(ids("cmpl-")),
            int(clock()),
            _encode(request.model),
        )
        choices = [_CompletionChoiceWriter(head, at, request) for at in range(request.sampling.n)]
        super().__init__(head, choices, _echo(request).include_usage)


class _CompletionChoiceWriter:
    """Writes the chunks of one choice. An echoed prompt precedes the first of them."""

    __slots__ = (
        "_logprobs", "_prompt", "_start", "_text", "_tokens", "_top", "finished", "run", "usage",
    )  # fmt: skip

    def __init__(self, head: bytes, at: int, request: Request) -> None:
        self._start = head + b'"choices":[{"index":%d,"text":' % at
        self._text = DeltaRun(TextDelta, self._start, _DELTA_END, choice=at)
        self._prompt = _echoed_prompt(request)
        self._top = request.sampling.logprobs
        self._tokens: list[TokenLogprob] = []  # sent with the next chunk
        self._logprobs = LogprobOffsets(len(self._prompt))
        self.usage = Usage()
        self.finished = False
        self.run = NO_RUN

    def write(self, event: Event) -> bytes:
        out = b""
        self.run = NO_RUN
        if self._prompt:
            prompt, self._prompt = self._prompt, ""
            out = self._chunk(prompt)
        match event:
            case TextDelta(text=text) | ReasoningDelta(text=text):
                out += self._chunk(text)
                self.run = self._text
            case Usage():
                self.usage = event
            case Logprobs(tokens=tokens) if self._top is not None:
                self._tokens += tokens
            case Finish():
                out += self._finish(event)
            case _:
                pass
        return out

    def _chunk(self, text: str, end: bytes = b"null") -> bytes:
        logprobs = b"null"
        if self._tokens:
            logprobs = _encode(self._logprobs.to_logprobs_out(self._tokens, self._top or 0))
            self._tokens = []
        tail = b',"logprobs":' + logprobs + b',"finish_reason":' + end + b"}]}\n\n"
        return self._start + encode_json_string(text) + tail

    def _finish(self, finish: Finish) -> bytes:
        self.finished = True
        end = _encode(_FINISH_REASONS[finish.reason])
        if finish.stop_sequence is not None:
            end += b',"stop_reason":' + _encode(finish.stop_sequence)
        return self._chunk("", end)


class LogprobOffsets:
    """Converts log probabilities, with the offset of each token in the text."""

    __slots__ = ("_at",)

    def __init__(self, at: int = 0) -> None:
        self._at = at

    def to_logprobs_out(self, tokens: Sequence[TokenLogprob], top: int) -> CompletionLogprobsOut:
        offsets: list[int] = []
        for token in tokens:
            offsets.append(self._at)
            self._at += len(token.token)
        best = [{text: clamp_logprob(value) for text, value in token.top[:top]} for token in tokens]
        return CompletionLogprobsOut(
            text_offset=offsets,
            token_logprobs=[clamp_logprob(token.logprob) for token in tokens],
            tokens=[token.token for token in tokens],
            top_logprobs=best if top else None,
        )


def encode_message(
    request: Request, messages: Sequence[Message], ids: IdFactory, clock: Clock
) -> bytes:
    """Encode one choice per message."""
    completion = CompletionOut(
        id=ids("cmpl-"),
        created=int(clock()),
        model=request.model,
        choices=[
            _choice(at, message, request) for at, message in enumerate(require_complete(messages))
        ],
        usage=combine_usage([message.usage for message in messages]),
    )
    return _encode(completion)


def _choice(at: int, message: Message, request: Request) -> CompletionChoiceOut:
    top, prompt = request.sampling.logprobs, _echoed_prompt(request)
    texts = (b.text for b in message.blocks if isinstance(b, TextBlock | ReasoningBlock))
    has_logprobs = top is not None and bool(message.logprobs)
    return CompletionChoiceOut(
        text=prompt + "".join(texts),
        index=at,
        logprobs=LogprobOffsets(len(prompt)).to_logprobs_out(message.logprobs, top or 0)
        if has_logprobs
        else None,
        finish_reason=_FINISH_REASONS[message.finish],
        stop_reason=UNSET if message.stop_sequence is None else message.stop_sequence,
    )


def _echo(request: Request) -> CompletionEcho:
    return request.echo if isinstance(request.echo, CompletionEcho) else CompletionEcho("")


def _echoed_prompt(request: Request) -> str:
    """Return the prompt if the response must start with it."""
    echo = _echo(request)
    return echo.prompt if echo.repeat and isinstance(echo.prompt, str) else ""
