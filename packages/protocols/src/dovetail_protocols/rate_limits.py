"""The state of rate limits, and the response headers that report it and when to retry."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from dovetail_model import BudgetExceeded, DovetailError


class LimitStatus(msgspec.Struct, frozen=True):
    """The current state of one limit of an API key.

    name: What is limited: "requests" or "tokens".
    limit: Allowed per minute.
    remaining: Currently available.
    reset_seconds: Time until the full limit is available again.
    """

    name: str
    limit: int
    remaining: int
    reset_seconds: float


def openai_headers(limits: Iterable[LimitStatus], now: float) -> list[tuple[str, str]]:
    """Return OpenAI's headers for these limits.

    `now` is part of the signature of `Codec.rate_limit_headers`; these headers contain durations
    and do not use it.
    """
    headers: list[tuple[str, str]] = []
    for status in limits:
        headers += [
            (f"x-ratelimit-limit-{status.name}", str(status.limit)),
            (f"x-ratelimit-remaining-{status.name}", str(status.remaining)),
            (f"x-ratelimit-reset-{status.name}", _format_duration(status.reset_seconds)),
        ]
    return headers


def anthropic_headers(limits: Iterable[LimitStatus], now: float) -> list[tuple[str, str]]:
    """Return Anthropic's headers for these limits. They contain the time of the reset."""
    headers: list[tuple[str, str]] = []
    for status in limits:
        reset = datetime.fromtimestamp(now + status.reset_seconds, UTC)
        prefix = f"anthropic-ratelimit-{status.name}"
        headers += [
            (f"{prefix}-limit", str(status.limit)),
            (f"{prefix}-remaining", str(status.remaining)),
            (f"{prefix}-reset", f"{reset:%Y-%m-%dT%H:%M:%SZ}"),
        ]
    return headers


def retry_headers(error: DovetailError) -> tuple[tuple[str, str], ...]:
    """Return the headers from which clients decide when and whether to retry.

    SDKs wait at most a minute, so they must not retry while a budget is used up.
    """
    if error.retry_after is None:
        return ()
    wait = ("retry-after", str(math.ceil(error.retry_after)))
    return (wait, ("x-should-retry", "false")) if isinstance(error, BudgetExceeded) else (wait,)


def _format_duration(seconds: float) -> str:
    """Format a duration as OpenAI does: 120ms, 6.5s, 1m30s."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"
