"""Encode responses of vLLM's completions protocol, as of vLLM 0.32.

A chunk has every field of its choice, including null fields. The usage is sent in a separate chunk
without choices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from dovetail.engines.completion_server.model import CompletionModel
from dovetail.engines.completion_server.request import CompletionRequest
from dovetail.engines.engine import EngineRequest, TokenDelta, TokenSink
from dovetail.net.response_writer import BodyWriter
from dovetail_tokenizers import Detokenizer

DONE = b"data: [DONE]\n\n"
IDS_ONLY_CHUNK = (
    b'data: {"choices":[{"token_ids":%a}]}\n\n'  # the repr of a list of integers is valid JSON
)

_json = msgspec.json.Encoder()


@dataclass
class UsageCounter:
    """Counts the tokens of one response. `cached` is None if the engine does not report it.

    If the engine lost track of its ids, the count is one higher than the number of ids sent. A
    client that counts the ids thereby detects that some are missing.
    """

    prompt: int
    cached: int | None = None
    generated: int = 0

    def add(self, delta: TokenDelta) -> None:
        self.generated += len(delta.ids) + (not delta.exact)
        if delta.cached is not None:
            self.cached = delta.cached

    def usage(self, *, details: bool = True) -> dict[str, Any]:
        counts: dict[str, Any] = {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.generated,
            "completion_tokens": self.generated,
        }
        if details and self.cached is not None:
            counts["prompt_tokens_details"] = {"cached_tokens": self.cached}
        return counts


class CompletionResponseChoice(msgspec.Struct):
    """The only choice of a response, or the part of it in one chunk."""

    index: int = 0
    text: str = ""
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class ChoiceBuilder:
    """Converts the deltas of one response to choices.

    `finished`: whether the last delta had a finish reason.
    """

    def __init__(
        self, body: CompletionRequest, request: EngineRequest, model: CompletionModel
    ) -> None:
        self.body = body
        self._request = request
        self._eos = next(iter(model.eos_ids), None)
        self._detokenizer: Detokenizer | None = None
        if not body.ids_only:
            self._detokenizer = Detokenizer(
                model.tokenizer, model.texts, keep_controls=not body.skip_special_tokens
            )
        self._offset = 0
        self.finished = False
        self.counter = UsageCounter(len(request.prompt))

    def build(self, delta: TokenDelta) -> CompletionResponseChoice:
        """Build the choice of the chunk for this delta."""
        ids, body, counter = delta.ids, self.body, self.counter
        self.finished = delta.finish is not None
        choice = CompletionResponseChoice(finish_reason=delta.finish)
        shown = ids
        if delta.finish is not None and ids and ids[-1] in self._request.stop_ids:
            choice.stop_reason = None if ids[-1] == self._eos else ids[-1]
            shown = ids if body.include_stop_str_in_output else ids[:-1]
        if self._detokenizer is not None:
            choice.text = self._text(self._detokenizer, shown, delta.finish is not None)
        if delta.logprobs:
            choice.logprobs = self._logprobs(delta)
        if body.return_token_ids or body.ids_only:
            choice.token_ids = ids
            if not (counter.generated or body.ids_only):
                choice.prompt_token_ids = self._request.prompt.tolist()
        counter.add(delta)
        return choice

    def _text(self, detokenizer: Detokenizer, ids: list[int], last: bool) -> str:
        pieces = detokenizer.feed(ids)
        if last:
            pieces += detokenizer.finish()
        return "".join([piece.text for piece in pieces])

    def _logprobs(self, delta: TokenDelta) -> dict[str, Any]:
        offsets = []
        for one in delta.logprobs:
            offsets.append(self._offset)
            self._offset += len(one.token)
        return {
            "text_offset": offsets,
            "token_logprobs": [one.logprob for one in delta.logprobs],
            "tokens": [one.token for one in delta.logprobs],
            # If several tokens have the same text, the most likely one is reported.
            "top_logprobs": [dict(reversed(one.top)) for one in delta.logprobs],
        }


class ResponseEnvelope:
    """The fields around the choices of one response, encoded once for all chunks."""

    def __init__(self, id: str, created: int, model: str) -> None:
        self._fields = {"id": id, "object": "text_completion", "created": created, "model": model}
        self._head = b"data: " + _json.encode(self._fields)[:-1] + b',"choices":['

    def encode_chunk(
        self, choice: CompletionResponseChoice, usage: Mapping[str, Any] | None = None
    ) -> bytes:
        """Encode a frame of the stream, with the current usage if it was requested."""
        tail = b"]}\n\n" if usage is None else b'],"usage":' + _json.encode(usage) + b"}\n\n"
        return self._head + _json.encode(choice) + tail

    def encode_usage(self, counter: UsageCounter) -> bytes:
        """Encode the usage frame, which follows the last choice."""
        return self._head + b'],"usage":' + _json.encode(counter.usage()) + b"}\n\n"

    def encode_response(self, choice: CompletionResponseChoice, counter: UsageCounter) -> bytes:
        """Encode the response to a non-streaming request."""
        return _json.encode({**self._fields, "choices": [choice], "usage": counter.usage()})


class StreamEncoder:
    """Encodes deltas as the frames of a stream."""

    __slots__ = ("_builder", "_counter", "_envelope", "_ids_only", "_usage")

    def __init__(self, builder: ChoiceBuilder, envelope: ResponseEnvelope) -> None:
        options = builder.body.stream_options
        self._builder = builder
        self._envelope = envelope
        self._counter = builder.counter
        self._usage = options is not None and options.continuous_usage_stats
        self._ids_only = builder.body.ids_only and not self._usage

    def encode(self, delta: TokenDelta) -> bytes:
        """Encode the frame of a delta. Runs for every token."""
        if self._ids_only and delta.finish is None and not delta.logprobs:
            self._counter.add(delta)
            return IDS_ONLY_CHUNK % delta.ids
        choice = self._builder.build(delta)
        usage = self._counter.usage(details=False) if self._usage else None
        return self._envelope.encode_chunk(choice, usage)

    def encode_end(self) -> bytes:
        """Encode the frames that follow the last choice."""
        options = self._builder.body.stream_options
        include_usage = options is not None and options.include_usage
        return self._envelope.encode_usage(self._counter) + DONE if include_usage else DONE


def merge_choices(choices: Sequence[CompletionResponseChoice]) -> CompletionResponseChoice:
    """Merge the choices of all chunks of a response."""
    whole = CompletionResponseChoice(
        text="".join([choice.text for choice in choices]),
        finish_reason=choices[-1].finish_reason,
        stop_reason=choices[-1].stop_reason,
        prompt_token_ids=choices[0].prompt_token_ids,
    )
    if choices[0].token_ids is not None:
        whole.token_ids = [id for choice in choices for id in choice.token_ids or ()]
    parts = [choice.logprobs for choice in choices if choice.logprobs is not None]
    if parts:
        whole.logprobs = {name: [x for part in parts for x in part[name]] for name in parts[0]}
    return whole


class BatchTokenSink(TokenSink, Protocol):
    """A sink that also accepts several deltas at once."""

    def push_all(self, deltas: Sequence[TokenDelta]) -> bool: ...


class StreamSink:
    """Writes a frame in the same call that pushes a delta."""

    __slots__ = ("_drain", "_encode", "_write")

    def __init__(self, writer: BodyWriter, encoder: StreamEncoder) -> None:
        self._encode = encoder.encode
        self._write = writer.write
        self._drain = writer.drain

    def push(self, delta: TokenDelta) -> bool:
        """Write the frame of a delta. Runs for every token."""
        return self._write(self._encode(delta))

    def push_all(self, deltas: Sequence[TokenDelta]) -> bool:
        return self._write(b"".join([self._encode(delta) for delta in deltas]))

    async def drain(self) -> bool:
        await self._drain()
        return True


class CollectingSink:
    """Collects the choices of all deltas."""

    __slots__ = ("_builder", "choices")

    def __init__(self, builder: ChoiceBuilder) -> None:
        self._builder = builder
        self.choices: list[CompletionResponseChoice] = []

    def push(self, delta: TokenDelta) -> bool:
        self.choices.append(self._builder.build(delta))
        return True

    def push_all(self, deltas: Sequence[TokenDelta]) -> bool:
        self.choices += [self._builder.build(delta) for delta in deltas]
        return True

    async def drain(self) -> bool:
        return True
