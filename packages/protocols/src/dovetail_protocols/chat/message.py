"""A whole answer, from the fold of the same events that would have been streamed."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from dovetail_model import Message, Request, ToolCallBlock
from dovetail_protocols.chat.decode import Echo
from dovetail_protocols.chat.encode import echo_of
from dovetail_protocols.chat.outcome import FINISH, logprobs_answer, usage_answer, whole
from dovetail_protocols.chat.segments import segments_of, texts_of
from dovetail_protocols.chat.wire import (
    CallAnswer,
    ChatAnswer,
    ChoiceAnswer,
    CustomAnswer,
    FunctionAnswer,
    MessageAnswer,
)
from dovetail_protocols.codec import Clock, Ids


def encode_message(
    request: Request, messages: Sequence[Message], ids: Ids, clock: Clock, reasoning_field: str
) -> bytes:
    """One choice for each message."""
    echo = echo_of(request)
    answer = ChatAnswer(
        id=ids("chatcmpl-"),
        created=int(clock()),
        model=request.model,
        service_tier="default" if echo.service_tier else UNSET,
        choices=[
            _choice(at, message, request, reasoning_field)
            for at, message in enumerate(whole(messages))
        ],
        usage=usage_answer([message.usage for message in messages]),
    )
    return msgspec.json.encode(answer)


def _choice(at: int, message: Message, request: Request, reasoning_field: str) -> ChoiceAnswer:
    top = request.sampling.logprobs
    told = top is not None and bool(message.logprobs)
    return ChoiceAnswer(
        index=at,
        message=_message(message, echo_of(request), reasoning_field),
        logprobs=logprobs_answer(message.logprobs, top or 0) if told else None,
        finish_reason=FINISH[message.finish],
        stop_reason=UNSET if message.stop_sequence is None else message.stop_sequence,
    )


def _message(message: Message, echo: Echo, reasoning_field: str) -> MessageAnswer:
    text, reasoning = texts_of(message.blocks)
    calls = [_call(block) for block in message.blocks if isinstance(block, ToolCallBlock)]
    by_name = {reasoning_field: reasoning} if reasoning else {}
    return MessageAnswer(
        content=None if calls and not text else text,
        reasoning_content=by_name.get("reasoning_content", UNSET),
        reasoning=by_name.get("reasoning", UNSET),
        reasoning_segments=segments_of(message.blocks) if echo.segments else UNSET,
        tool_calls=calls or UNSET,
    )


def _call(call: ToolCallBlock) -> CallAnswer:
    if call.custom:
        return CallAnswer(call.id, "custom", custom=CustomAnswer(call.name, call.arguments))
    return CallAnswer(call.id, "function", function=FunctionAnswer(call.name, call.arguments))
