"""Finish reasons, usage and logprobs in OpenAI's terms."""

from collections.abc import Sequence

import msgspec

from dovetail_model import (
    Event,
    Failure,
    Finish,
    FinishReason,
    Message,
    TokenLogprob,
    Usage,
    error_from_failure,
)
from dovetail_protocols.chat.wire import (
    ChatLogprobsOut,
    ChatUsageOut,
    CompletionDetails,
    PromptDetails,
    TokenLogprobOut,
    TopLogprobOut,
)

FINISH_REASONS: dict[FinishReason, str] = {
    "stop": "stop",
    "stop_sequence": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "context_window": "length",
    "refusal": "content_filter",
}
"""How a response may end. Any other reason is reported as a failure."""

_BROKEN = Failure("engine", "The model's output broke off.")


def as_failure(event: Event) -> Failure | None:
    """The failure that this event is or stands for, if any."""
    if isinstance(event, Finish) and event.reason not in FINISH_REASONS:
        return _BROKEN
    return event if isinstance(event, Failure) else None


def require_complete(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages if all of them are complete; raise the error of the first that is not."""
    for message in messages:
        if message.failure is not None or message.finish not in FINISH_REASONS:
            raise error_from_failure(message.failure or _BROKEN)
    return messages


MIN_LOGPROB = -9999.0
"""The log probability of what is impossible: JSON knows no infinity."""


def combine_usage(usages: Sequence[Usage]) -> ChatUsageOut:
    """The cost of all choices. Their prompt is one prompt, and counted once."""
    prompt = max(usage.input_tokens for usage in usages)
    completion = sum(usage.output_tokens for usage in usages)
    return ChatUsageOut(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        # Later choices find the prompt that the first one computed: that was no saving.
        prompt_tokens_details=PromptDetails(min(usage.cached_tokens for usage in usages)),
        completion_tokens_details=CompletionDetails(
            sum(usage.reasoning_tokens for usage in usages)
        ),
    )


def to_logprobs_out(tokens: Sequence[TokenLogprob], top: int) -> ChatLogprobsOut:
    return ChatLogprobsOut([_token(token, top) for token in tokens])


def encode_logprobs(tokens: Sequence[TokenLogprob], top: int) -> bytes:
    return msgspec.json.encode(to_logprobs_out(tokens, top))


def clamp_logprob(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB) if logprob == logprob else MIN_LOGPROB


def _token(token: TokenLogprob, top: int) -> TokenLogprobOut:
    best = [
        TopLogprobOut(text, clamp_logprob(value), _bytes(text)) for text, value in token.top[:top]
    ]
    return TokenLogprobOut(token.token, clamp_logprob(token.logprob), _bytes(token.token), best)


def _bytes(token: str) -> list[int] | None:
    """The token's bytes; not known where it held a part of a character only."""
    return None if "\ufffd" in token else list(token.encode())
