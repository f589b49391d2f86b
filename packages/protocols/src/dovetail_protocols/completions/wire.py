"""Wire types of text completions."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from dovetail_protocols.chat.wire import ChatUsageOut, SamplingFields

Prompt = str | list[str | int | list[int]] | None


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`."""

    prompt: Prompt = None
    echo: bool | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    best_of: int | None = None
    response_format: dict[str, Any] | None = None


class CompletionLogprobsOut(msgspec.Struct, frozen=True):
    """Four lists of equal length with one entry per token."""

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]] | None


class CompletionChoiceOut(msgspec.Struct, frozen=True):
    text: str
    index: int
    logprobs: CompletionLogprobsOut | None
    finish_reason: str | None
    stop_reason: str | UnsetType = UNSET


class CompletionOut(msgspec.Struct, frozen=True, kw_only=True):
    """A complete response. A chunk of a stream has the same form."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoiceOut]
    usage: ChatUsageOut | UnsetType = UNSET
