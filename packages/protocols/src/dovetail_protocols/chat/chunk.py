"""Chunks of a chat stream as other servers send them: read leniently, what is unknown skipped."""

from typing import Any

import msgspec

from dovetail_model import Usage


class FunctionFragment(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    arguments: str | None = None


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
        return self.function.arguments if self.function is not None else None


class Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: list[Fragment] | None = None


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
    index: int | None = None
    delta: Delta | None = None
    logprobs: TokenList | None = None
    finish_reason: str | None = None
    stop_reason: Any = None


class Counts(msgspec.Struct, frozen=True):
    """`prompt_tokens_details` or `completion_tokens_details`."""

    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class ChunkUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Counts | None = None
    completion_tokens_details: Counts | None = None

    def usage(self) -> Usage:
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        return Usage(
            input_tokens=self.prompt_tokens,
            output_tokens=self.completion_tokens,
            cached_tokens=(prompt.cached_tokens or 0) if prompt else 0,
            reasoning_tokens=(completion.reasoning_tokens or 0) if completion else 0,
        )


class Chunk(msgspec.Struct, frozen=True):
    """One chunk, or the error that ended the stream."""

    choices: list[Choice] | None = None
    usage: ChunkUsage | None = None
    error: dict[str, Any] | str | None = None
