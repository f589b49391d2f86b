"""Encode a non-streaming response from the fold of the same events."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from dovetail_model import CitedTextBlock, Message, Request, ToolCallBlock
from dovetail_protocols.chat.decode import ChatEcho
from dovetail_protocols.chat.encode import chat_echo
from dovetail_protocols.chat.outcome import (
    FINISH_REASONS,
    combine_usage,
    require_complete,
    to_logprobs_out,
)
from dovetail_protocols.chat.segments import group_texts, split_reasoning
from dovetail_protocols.chat.web_search import join_texts
from dovetail_protocols.chat.wire import (
    AnnotationOut,
    ChatChoiceOut,
    ChatCompletionOut,
    ChatMessageOut,
    CustomOut,
    FunctionOut,
    ToolCallOut,
)
from dovetail_protocols.codec import Clock, IdFactory


def encode_message(
    request: Request,
    messages: Sequence[Message],
    ids: IdFactory,
    clock: Clock,
    reasoning_field: str,
) -> bytes:
    """Encode one choice per message."""
    returned = messages[0].response_fields
    default = {"service_tier": "default"} if chat_echo(request).service_tier else {}
    server = default if returned is None else returned.fields
    completion = ChatCompletionOut(
        id=ids("chatcmpl-"),
        created=int(clock()),
        model=request.model,
        service_tier=server.get("service_tier") or UNSET,
        system_fingerprint=server.get("system_fingerprint") or UNSET,
        choices=[
            _choice(at, message, request, reasoning_field)
            for at, message in enumerate(require_complete(messages))
        ],
        usage=combine_usage([message.usage for message in messages]),
    )
    return msgspec.json.encode(completion)


def _choice(at: int, message: Message, request: Request, reasoning_field: str) -> ChatChoiceOut:
    top = request.sampling.logprobs
    has_logprobs = top is not None and bool(message.logprobs)
    return ChatChoiceOut(
        index=at,
        message=_message(message, chat_echo(request), reasoning_field),
        logprobs=to_logprobs_out(message.logprobs, top or 0) if has_logprobs else None,
        finish_reason=FINISH_REASONS[message.finish],
        stop_reason=UNSET if message.stop_sequence is None else message.stop_sequence,
    )


def _message(message: Message, echo: ChatEcho, reasoning_field: str) -> ChatMessageOut:
    text, reasoning = group_texts(message.blocks)
    annotations: list[AnnotationOut] = []
    if message.server_results or any(isinstance(b, CitedTextBlock) for b in message.blocks):
        text, annotations = join_texts(message)
    calls = [
        _call(block)
        for block in message.blocks
        if isinstance(block, ToolCallBlock) and block.server is None
    ]
    by_name = {reasoning_field: reasoning} if reasoning else {}
    return ChatMessageOut(
        content=None if calls and not text else text,
        reasoning_content=by_name.get("reasoning_content", UNSET),
        reasoning=by_name.get("reasoning", UNSET),
        reasoning_segments=split_reasoning(message.blocks) if echo.segments else UNSET,
        tool_calls=calls or UNSET,
        annotations=annotations or UNSET,
    )


def _call(call: ToolCallBlock) -> ToolCallOut:
    if call.custom:
        return ToolCallOut(call.id, "custom", custom=CustomOut(call.name, call.arguments))
    return ToolCallOut(call.id, "function", function=FunctionOut(call.name, call.arguments))
