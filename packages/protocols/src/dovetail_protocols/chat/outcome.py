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
"""Finish reasons of a successful response. Any other reason is reported as a failure."""

_BROKEN = Failure("engine", "The model's output ended unexpectedly.")


def as_failure(event: Event) -> Failure | None:
    """Return the failure that this event represents, if any."""
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
"""Log probability of an impossible token: JSON has no infinity."""


def combine_usage(usages: Sequence[Usage]) -> ChatUsageOut:
    """Sum the usage of all choices. Their common prompt is counted once."""
    prompt = max(usage.input_tokens for usage in usages)
    completion = sum(usage.output_tokens for usage in usages)
    return ChatUsageOut(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        # Later choices reuse the prompt that the first one computed: these are not cached tokens.
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
    """Return the token's bytes; None if it contains an incomplete character."""
    return None if "\ufffd" in token else list(token.encode())
