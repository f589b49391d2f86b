"""How a key stands with its limits, in the headers that clients of each API know."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from dovetail.access.limits import LimitStatus
from dovetail_protocols import MESSAGES, Codec


def limit_headers(
    codec: Codec, statuses: Iterable[LimitStatus], now: datetime | None = None
) -> list[tuple[str, str]]:
    """What a limit is, what is left of it, and when all of it will be there again."""
    moment = now or datetime.now(UTC)
    found: list[tuple[str, str]] = []
    for one in statuses:
        values = {"limit": str(one.limit), "remaining": str(one.remaining)}
        if codec is MESSAGES:
            values["reset"] = f"{moment + timedelta(seconds=one.reset_seconds):%Y-%m-%dT%H:%M:%SZ}"
            found += [(f"anthropic-ratelimit-{one.name}-{k}", v) for k, v in values.items()]
        else:
            values["reset"] = _format_duration(one.reset_seconds)
            found += [(f"x-ratelimit-{k}-{one.name}", v) for k, v in values.items()]
    return found


def _format_duration(seconds: float) -> str:
    """A time to wait as OpenAI writes it: 120ms, 6.5s, 1m30s."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"
