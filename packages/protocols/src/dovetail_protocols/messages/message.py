"""Encode a non-streaming response, and the parts that the stream shares with it."""

from collections.abc import Sequence

import msgspec

from dovetail_model import (
    Failure,
    FinishReason,
    Message,
    OutputBlock,
    ReasoningBlock,
    Request,
    TextBlock,
    Usage,
    error_from_failure,
)
from dovetail_protocols.codec import Clock, IdFactory
from dovetail_protocols.json_strings import replace_surrogates
from dovetail_protocols.messages import wire
from dovetail_protocols.messages.arguments import input_json

MESSAGE_PREFIX = "msg_"

STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "stop_sequence": "stop_sequence",
    "context_window": "model_context_window_exceeded",
    "refusal": "refusal",
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
        content=[_block(block) for block in message.blocks if not _is_blank(block)],
        stop_reason=reason,
        stop_sequence=message.stop_sequence,
        usage=to_usage_out(message.usage),
    )
    return msgspec.json.encode(response)


def encode_count(tokens: int) -> bytes:
    """Encode the response to a request to count tokens."""
    return b'{"input_tokens":%d}' % tokens


def to_usage_out(usage: Usage) -> wire.UsageOut:
    reasoning_tokens = usage.reasoning_tokens
    return wire.UsageOut(
        input_tokens=max(0, usage.input_tokens - usage.cached_tokens),
        cache_creation_input_tokens=0,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        output_tokens_details=wire.OutputDetailsOut(reasoning_tokens) if reasoning_tokens else None,
    )


def _is_blank(block: OutputBlock) -> bool:
    return isinstance(block, TextBlock) and not block.text.strip()


def _block(block: OutputBlock) -> wire.TextOut | wire.ThinkingOut | wire.ToolUseOut:
    if isinstance(block, TextBlock):
        return wire.TextOut(replace_surrogates(block.text))
    if isinstance(block, ReasoningBlock):
        return wire.ThinkingOut(replace_surrogates(block.text), block.seal or "")
    return wire.ToolUseOut(block.id, replace_surrogates(block.name), input_json(block))
