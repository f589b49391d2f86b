"""Chunks of a chat stream as other servers send them, decoded leniently."""

from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from dovetail_model import Usage


class FunctionFragment(msgspec.Struct, frozen=True):
    """`arguments` is JSON text; some servers send an object."""

    name: str | None = None
    arguments: Any = None


class CustomFragment(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    input: str | None = None


class CallFragment(msgspec.Struct, frozen=True):
    """A fragment of a call: the name arrives once, the arguments in fragments."""

    index: int | None = None
    id: str | None = None
    function: FunctionFragment | None = None
    custom: CustomFragment | None = None

    @property
    def name(self) -> str | None:
        part = self.custom or self.function
        return part.name if part is not None else None

    @property
    def text(self) -> str | None:
        if self.custom is not None:
            return self.custom.input
        arguments = self.function.arguments if self.function is not None else None
        return arguments if arguments is None or isinstance(arguments, str) else _json(arguments)


class ChunkDelta(msgspec.Struct, frozen=True):
    """A fragment of a message, or a full message. `content` is text or parts, or reasoning."""

    content: Any = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: list[CallFragment] | None = None
    annotations: Any = None

    @property
    def text(self) -> str:
        return _join_text(self.content, reasoning=False) or self.refusal or ""

    @property
    def reasoning_text(self) -> str:
        for text in (self.reasoning_content, self.reasoning):
            if isinstance(text, str) and text:
                return text
        return _join_text(self.content, reasoning=True)


class ChunkTopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float


class ChunkToken(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    top_logprobs: list[ChunkTopLogprob] | None = None


class ChunkLogprobs(msgspec.Struct, frozen=True):
    content: list[ChunkToken] | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    """`message` replaces `delta` in non-streaming responses."""

    index: int | None = None
    delta: ChunkDelta | None = None
    message: ChunkDelta | None = None
    logprobs: ChunkLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: Any = None


class ChunkTokenDetails(msgspec.Struct, frozen=True):
    """`prompt_tokens_details` or `completion_tokens_details`."""

    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class ChunkUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: ChunkTokenDetails | None = None
    completion_tokens_details: ChunkTokenDetails | None = None

    def usage(self) -> Usage:
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        return Usage(
            input_tokens=self.prompt_tokens or 0,
            output_tokens=self.completion_tokens or 0,
            cached_tokens=(prompt.cached_tokens or 0) if prompt else 0,
            reasoning_tokens=(completion.reasoning_tokens or 0) if completion else 0,
        )


class ChatChunk(msgspec.Struct, frozen=True):
    """One chunk, or the error that ended the stream."""

    choices: list[ChunkChoice] | None = None
    usage: ChunkUsage | None = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    error: dict[str, Any] | str | None = None


WireType = TypeVar("WireType", bound=msgspec.Struct)


def salvage_chunk(data: str) -> ChatChunk:
    """Decode the valid parts of a chunk in which some fields have unexpected types."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ChatChunk()
    chunk = _salvage_fields(value, ChatChunk)
    listed = value.get("choices") if isinstance(value, dict) else None
    if chunk.choices is None and isinstance(listed, list):
        choices = [_salvage_choice(choice) for choice in listed]
        return msgspec.structs.replace(chunk, choices=choices)
    return chunk


def _salvage_choice(value: object) -> ChunkChoice:
    choice = _salvage_fields(value, ChunkChoice)
    if choice.delta is None and choice.message is None and isinstance(value, dict):
        delta = _salvage_fields(value.get("delta") or value.get("message"), ChunkDelta)
        return msgspec.structs.replace(choice, delta=delta)
    return choice


def _salvage_fields(value: object, wire_type: type[WireType]) -> WireType:
    """Keep the fields with valid types; numbers may be strings, as some servers send them."""
    found = value if isinstance(value, dict) else {}
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(wire_type):
        if found.get(field.name) is not None:
            with suppress(msgspec.ValidationError, RecursionError):
                given = msgspec.convert(found[field.name], field.type, strict=False)
                fields[field.name] = given
    return wire_type(**fields)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _join_text(content: object, *, reasoning: bool) -> str:
    """Join the text of a content, or of its reasoning parts, as in Mistral's API."""
    if isinstance(content, str):
        return "" if reasoning else content
    parts = content if isinstance(content, list) else []
    return "".join(_part_text(part, reasoning) for part in parts if isinstance(part, dict))


def _part_text(part: dict[str, Any], reasoning: bool) -> str:
    if (part.get("type") == "thinking") != reasoning:
        return ""
    text = part.get("thinking") if reasoning else part.get("text")
    return text if isinstance(text, str) else _join_text(text, reasoning=False)
