"""Frames of a Responses stream as other servers send them, decoded leniently."""

from typing import Any

import msgspec

from dovetail_model import TokenLogprob, Usage
from dovetail_protocols.citations import Annotation, find_annotations


class FramePart(msgspec.Struct, frozen=True):
    """A part of an item's content: text, a refusal, reasoning or a reasoning summary."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    annotations: Any = None

    @property
    def content_text(self) -> str:
        return self.text or self.refusal or ""


class FrameItem(msgspec.Struct, frozen=True, kw_only=True):
    """An output item, possibly incomplete."""

    type: str = ""
    id: str | None = None
    status: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    content: list[FramePart] | None = None
    summary: list[FramePart] | None = None
    encrypted_content: str | None = None

    @property
    def is_call(self) -> bool:
        return self.type in ("function_call", "custom_tool_call")

    @property
    def text(self) -> str:
        """The text of the item: a call's arguments, or reasoning in preference to its summary."""
        if self.is_call:
            return (self.input if self.type == "custom_tool_call" else self.arguments) or ""
        text = "".join(part.content_text for part in self.content or ())
        return text or "\n\n".join(part.content_text for part in self.summary or ())

    @property
    def annotations(self) -> list[tuple[Annotation, int]]:
        """The annotations of all parts, each with the start of its part in the text."""
        found: list[tuple[Annotation, int]] = []
        start = 0
        for part in self.content or ():
            found += [(annotation, start) for annotation in find_annotations(part.annotations)]
            start += len(part.content_text)
        return found


class FrameTokenDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class FrameUsage(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: FrameTokenDetails | None = None
    output_tokens_details: FrameTokenDetails | None = None

    def usage(self) -> Usage:
        input_details = self.input_tokens_details or FrameTokenDetails()
        output_details = self.output_tokens_details or FrameTokenDetails()
        return Usage(
            input_tokens=self.input_tokens or 0,
            output_tokens=self.output_tokens or 0,
            cached_tokens=input_details.cached_tokens or 0,
            reasoning_tokens=output_details.reasoning_tokens or 0,
        )


class FrameResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response object, at the end of a stream or non-streaming."""

    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: FrameUsage | None = None
    error: dict[str, Any] | str | None = None
    incomplete_details: dict[str, Any] | None = None


class FrameLogprob(msgspec.Struct, frozen=True):
    token: str = ""
    logprob: float = 0.0
    top_logprobs: "list[FrameLogprob] | None" = None

    def to_token_logprob(self) -> TokenLogprob:
        top = tuple((each.token, each.logprob) for each in self.top_logprobs or ())
        return TokenLogprob(self.token, self.logprob, top)


class ResponseFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One event of any type."""

    type: str = ""
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    item: FrameItem | None = None
    annotation: dict[str, Any] | None = None
    delta: str | None = None
    text: str | None = None
    refusal: str | None = None
    arguments: str | None = None
    input: str | None = None
    logprobs: list[FrameLogprob] | None = None
    response: msgspec.Raw = msgspec.Raw()
    error: dict[str, Any] | str | None = None
    code: Any = None
    message: str | None = None
    param: str | None = None
