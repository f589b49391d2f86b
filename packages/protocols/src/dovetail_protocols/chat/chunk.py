"""Chunks of a chat stream as other servers send them: read leniently, what is unknown skipped."""

from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from dovetail_model import Usage


class FunctionFragment(msgspec.Struct, frozen=True):
    """`arguments` is JSON text; some servers send the object itself."""

    name: str | None = None
    arguments: Any = None


class CustomFragment(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    input: str | None = None


class Fragment(msgspec.Struct, frozen=True):
    """A piece of a call: its name comes once, its text in pieces."""

    index: int | None = None
    id: str | None = None
    function: FunctionFragment | None = None
    custom: CustomFragment | None = None

    @property
    def name(self) -> str | None:
        told = self.custom or self.function
        return told.name if told is not None else None

    @property
    def text(self) -> str | None:
        if self.custom is not None:
            return self.custom.input
        told = self.function.arguments if self.function is not None else None
        return told if told is None or isinstance(told, str) else _json(told)


class Delta(msgspec.Struct, frozen=True):
    """A piece of a message, or all of it. `content` is text or parts, thoughts among them."""

    content: Any = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: list[Fragment] | None = None

    @property
    def text(self) -> str:
        return _joined(self.content, thoughts=False) or self.refusal or ""

    @property
    def thought(self) -> str:
        for told in (self.reasoning_content, self.reasoning):
            if isinstance(told, str) and told:
                return told
        return _joined(self.content, thoughts=True)


class Top(msgspec.Struct, frozen=True):
    token: str
    logprob: float


class Token(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    top_logprobs: list[Top] | None = None


class TokenList(msgspec.Struct, frozen=True):
    content: list[Token] | None = None


class Choice(msgspec.Struct, frozen=True):
    """`message` stands in place of a delta where a server does not stream."""

    index: int | None = None
    delta: Delta | None = None
    message: Delta | None = None
    logprobs: TokenList | None = None
    finish_reason: str | None = None
    stop_reason: Any = None


class Counts(msgspec.Struct, frozen=True):
    """`prompt_tokens_details` or `completion_tokens_details`."""

    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class ChunkUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Counts | None = None
    completion_tokens_details: Counts | None = None

    def usage(self) -> Usage:
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        return Usage(
            input_tokens=self.prompt_tokens or 0,
            output_tokens=self.completion_tokens or 0,
            cached_tokens=(prompt.cached_tokens or 0) if prompt else 0,
            reasoning_tokens=(completion.reasoning_tokens or 0) if completion else 0,
        )


class Chunk(msgspec.Struct, frozen=True):
    """One chunk, or the error that ended the stream."""

    choices: list[Choice] | None = None
    usage: ChunkUsage | None = None
    error: dict[str, Any] | str | None = None


Form = TypeVar("Form", bound=msgspec.Struct)


def salvaged(data: str) -> Chunk:
    """What can be read of a chunk with fields of another shape; these are left out."""
    try:
        told = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return Chunk()
    chunk = _kept(told, Chunk)
    listed = told.get("choices") if isinstance(told, dict) else None
    if chunk.choices is None and isinstance(listed, list):
        choices = [_salvaged_choice(choice) for choice in listed]
        return msgspec.structs.replace(chunk, choices=choices)
    return chunk


def _salvaged_choice(told: object) -> Choice:
    choice = _kept(told, Choice)
    if choice.delta is None and choice.message is None and isinstance(told, dict):
        delta = _kept(told.get("delta") or told.get("message"), Delta)
        return msgspec.structs.replace(choice, delta=delta)
    return choice


def _kept(told: object, form: type[Form]) -> Form:
    """The fields that are what they should be; numbers may be text, as some have it."""
    found = told if isinstance(told, dict) else {}
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(form):
        if found.get(field.name) is not None:
            with suppress(msgspec.ValidationError, RecursionError):
                given = msgspec.convert(found[field.name], field.type, strict=False)
                fields[field.name] = given
    return form(**fields)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _joined(content: object, *, thoughts: bool) -> str:
    """The text of a content, or of the thoughts among its parts, as Mistral's API has them."""
    if isinstance(content, str):
        return "" if thoughts else content
    parts = content if isinstance(content, list) else []
    return "".join(_part(part, thoughts) for part in parts if isinstance(part, dict))


def _part(part: dict[str, Any], thoughts: bool) -> str:
    if (part.get("type") == "thinking") != thoughts:
        return ""
    told = part.get("thinking") if thoughts else part.get("text")
    return told if isinstance(told, str) else _joined(told, thoughts=False)
