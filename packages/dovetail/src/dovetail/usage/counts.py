"""What is counted, and by which dimensions."""

import msgspec

from dovetail.telemetry.record import RequestRecord
from dovetail.usage.prices import Prices
from dovetail_model import Usage

HOUR_SECONDS = 3600
DAY_SECONDS = 86_400
#: Stands for the sessions of a day beyond the limit.
OTHER_SESSIONS = "(other)"
_MICROSECONDS = 1_000_000


class UsageKey(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Who used what.

    key: Name of the API key, else the first digits of its hash; "" on a server without keys.
    session: "" if the client named none.
    """

    tenant: str = ""
    key: str = ""
    model: str = ""
    session: str = ""
    harness: str = ""


DIMENSIONS: tuple[str, ...] = UsageKey.__struct_fields__


class UsageCounts(msgspec.Struct, frozen=True, array_like=True):
    """Sums over requests. All are integers, so that the order of additions does not matter.

    requests: Finished requests, including those that failed.
    failed: Finished requests with an error, including those whose client disconnected.
    interrupted: Requests that were running when their process crashed. Their tokens are unknown.
    prompt_tokens: Tokens of prompts, of which `cached_tokens` were cached by the engine.
    reprefilled_tokens: Prompt tokens that were computed again although they could be cached.
    microseconds: Time from the arrival of a request to the end of its response.
    cost_nanos: Billionths of the currency, at the prices when the request finished.
    """

    requests: int = 0
    failed: int = 0
    interrupted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    reprefilled_tokens: int = 0
    microseconds: int = 0
    cost_nanos: int = 0

    def __add__(self, other: "UsageCounts") -> "UsageCounts":
        return UsageCounts(*(getattr(self, n) + getattr(other, n) for n in COUNTERS))

    @property
    def budget_tokens(self) -> int:
        """The tokens that budgets count, as rate limits do: uncached prompt tokens and output."""
        return max(0, self.prompt_tokens - self.cached_tokens) + self.output_tokens


COUNTERS: tuple[str, ...] = UsageCounts.__struct_fields__


def count_request(record: RequestRecord, prices: Prices) -> UsageCounts:
    """Return the counts of one finished request."""
    usage = record.usage or Usage()
    return UsageCounts(
        requests=1,
        failed=int(record.status >= 400),
        prompt_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        reprefilled_tokens=record.reprefilled or 0,
        microseconds=round(record.duration * _MICROSECONDS),
        cost_nanos=prices.cost_nanos(usage),
    )


def floor_hour(time: float) -> int:
    """Return the start of the hour of a time, in UTC."""
    return int(time) // HOUR_SECONDS * HOUR_SECONDS


def floor_day(time: float) -> int:
    """Return the start of the day of a time, in UTC."""
    return int(time) // DAY_SECONDS * DAY_SECONDS
