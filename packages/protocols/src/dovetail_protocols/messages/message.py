"""Encode a non-streaming response, and the parts that the stream shares with it."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from dovetail_model import (
    AppliedEdit,
    CitedTextBlock,
    Compaction,
    Failure,
    FinishReason,
    Message,
    ReasoningBlock,
    Request,
    ResponseBlock,
    ServerToolResult,
    TextBlock,
    Usage,
    error_from_failure,
)
from dovetail_protocols.codec import Clock, IdFactory
from dovetail_protocols.json_strings import replace_surrogates
from dovetail_protocols.messages import wire
from dovetail_protocols.messages.arguments import input_json
from dovetail_protocols.messages.context import to_context_out
from dovetail_protocols.messages.server_blocks import (
    encode_call,
    encode_citation,
    encode_result,
    to_server_usage,
)

MESSAGE_PREFIX = "msg_"

STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "stop_sequence": "stop_sequence",
    "context_window": "model_context_window_exceeded",
    "refusal": "refusal",
    "compaction": "compaction",
    "pause": "pause_turn",
}
BROKEN_OUTPUT = Failure("engine", "The model's output ended unexpectedly.")


def encode_message(
    request: Request, messages: Sequence[Message], ids: IdFactory, clock: Clock
) -> bytes:
    """Encode a message. An incomplete output is an error, never a short message."""
    message = messages[0]
    reason = STOP_REASONS.get(message.finish)
    if message.failure is not None or reason is None:
        raise error_from_failure(message.failure or BROKEN_OUTPUT)
    response = wire.MessageOut(
        id=ids(MESSAGE_PREFIX),
        role="assistant",
        model=request.model,
        content=_content(message),
        stop_reason=reason,
        stop_sequence=message.stop_sequence,
        usage=to_usage_out(message.usage, message.compaction, message.finish),
        context_management=context_out(request, message.applied_edits),
    )
    return msgspec.json.encode(response)


def encode_count(tokens: int, original: int | None = None) -> bytes:
    """Encode a token count. `original` is the count without context edits, if any is requested."""
    if original is None:
        return b'{"input_tokens":%d}' % tokens
    count = {"input_tokens": tokens, "context_management": {"original_input_tokens": original}}
    return msgspec.json.encode(count)


def to_usage_out(
    usage: Usage, compaction: Compaction | None = None, finish: FinishReason = "stop"
) -> wire.UsageOut:
    """Encode token counts. The tokens of a summary are listed, but not added to the others."""
    reasoning_tokens = usage.reasoning_tokens
    iterations = None
    if compaction is not None:
        iterations = [_iteration("compaction", compaction.usage)]
        if finish != "compaction":
            iterations.append(_iteration("message", usage))
    return wire.UsageOut(
        input_tokens=_uncached_tokens(usage),
        cache_creation_input_tokens=0,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        output_tokens_details=wire.OutputDetailsOut(reasoning_tokens) if reasoning_tokens else None,
        iterations=iterations,
        server_tool_use=to_server_usage(usage.web_searches, usage.web_fetches),
    )


def context_out(request: Request, edits: Sequence[AppliedEdit]) -> wire.ContextManagementOut | None:
    """Encode the applied edits, None if the client requests none and none is in force."""
    return to_context_out(edits) if edits or request.context.edits else None


def _iteration(kind: Literal["message", "compaction"], usage: Usage) -> wire.IterationOut:
    return wire.IterationOut(
        type=kind,
        input_tokens=_uncached_tokens(usage),
        cache_creation_input_tokens=0,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
    )


def _uncached_tokens(usage: Usage) -> int:
    return max(0, usage.input_tokens - usage.cached_tokens)


def _content(message: Message) -> list[wire.BlockOut]:
    content: list[wire.BlockOut] = []
    if message.compaction is not None:
        content.append(wire.CompactionOut(clean_summary(message.compaction)))
    content += [_block(block) for block in message.response_blocks() if not _is_blank(block)]
    return content


def clean_summary(compaction: Compaction) -> str | None:
    """Return the summary as valid Unicode."""
    summary = compaction.summary
    return None if summary is None else replace_surrogates(summary)


def _is_blank(block: ResponseBlock) -> bool:
    return isinstance(block, TextBlock) and not block.text.strip()


def _block(block: ResponseBlock) -> wire.BlockOut:
    if isinstance(block, ServerToolResult):
        return encode_result(block)
    if isinstance(block, CitedTextBlock):
        citations = [encode_citation(one) for one in block.citations]
        return wire.TextOut(replace_surrogates(block.text), citations)
    if isinstance(block, TextBlock):
        return wire.TextOut(replace_surrogates(block.text))
    if isinstance(block, ReasoningBlock):
        return wire.ThinkingOut(replace_surrogates(block.text), block.seal or "")
    if block.server is not None:
        return encode_call(block, input_json(block))
    return wire.ToolUseOut(block.id, replace_surrogates(block.name), input_json(block))
