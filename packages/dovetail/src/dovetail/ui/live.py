"""Live statistics of one process: totals, rates of the last ten minutes, latencies, errors.

Everything is derived from finished requests and from counters that exist anyway, so that nothing
runs per token. The statistics of several worker processes can be added up.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import msgspec

from dovetail.telemetry.metrics import INTER_TOKEN_BUCKETS_SECONDS, Metrics
from dovetail.telemetry.record import RequestContents, RequestRecord
from dovetail.ui.explanation import count_changed_tokens
from dovetail.ui.history import is_diverged

BUCKET_SECONDS = 5
BUCKETS = 120
RATE_BUCKETS = 12  # for the rates that are shown as numbers: one minute
MAX_SAMPLES = 1024
MAX_ERRORS = 20

#: The columns of a bucket.
COLUMNS = ("requests", "errors", "output", "input", "cached", "reprefilled")


class ErrorEntry(msgspec.Struct, frozen=True):
    """A failed request. `at` is its end."""

    at: float
    id: str
    status: int
    endpoint: str
    error: str | None
    reason: str | None
    tenant: str
    session: str | None


class Totals(msgspec.Struct):
    """Counts since the start of the process."""

    requests: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    reprefilled_tokens: int = 0
    changed_tokens: int = 0

    def add(self, other: "Totals") -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class LiveSnapshot(msgspec.Struct, kw_only=True):
    """The statistics of one process, or of several.

    `buckets`: the counts by `COLUMNS`, for each of the last buckets, by number.
    `first_token_seconds`: samples of the time to first token.
    `inter_token_counts`: the last ten minutes of the histogram.
    `reasons`: divergent prompts by reason, since the start.
    """

    totals: Totals
    running: int
    queued: int
    buckets: dict[int, list[float]]
    first_token_seconds: list[float]
    inter_token_counts: list[int]
    errors: list[ErrorEntry]
    reasons: dict[str, int]

    def add(self, other: "LiveSnapshot") -> None:
        """Add the statistics of another process."""
        self.totals.add(other.totals)
        self.running += other.running
        self.queued += other.queued
        for number, counts in other.buckets.items():
            own = self.buckets.setdefault(number, [0] * len(COLUMNS))
            self.buckets[number] = [a + b for a, b in zip(own, counts, strict=True)]
        self.first_token_seconds += other.first_token_seconds
        pairs = zip(self.inter_token_counts, other.inter_token_counts, strict=True)
        self.inter_token_counts = [a + b for a, b in pairs]
        errors = sorted((*self.errors, *other.errors), key=lambda one: one.at)
        self.errors = errors[-MAX_ERRORS:]
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count


class LiveStatistics:
    """A recorder that keeps statistics of finished requests."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.time) -> None:
        self._metrics = metrics
        self._clock = clock
        self._totals = Totals()
        self._buckets: deque[tuple[int, list[float]]] = deque(maxlen=BUCKETS)
        self._inter_token: deque[tuple[int, list[int]]] = deque(maxlen=BUCKETS)
        self._samples: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)
        self._errors: deque[ErrorEntry] = deque(maxlen=MAX_ERRORS)
        self._reasons: dict[str, int] = {}

    def record_request(self, record: RequestRecord, contents: RequestContents) -> None:
        now = self._clock()
        self._advance(now)
        bucket = self._buckets[-1][1]
        if record.status >= 400:
            bucket[1] += 1
            self._errors.append(_error_entry(record))
        if record.decoded is None:  # not a request to a model
            return
        self._totals.requests += 1
        self._totals.failed += record.status >= 400
        bucket[0] += 1
        self._add_tokens(record, bucket)
        if record.first_token is not None:
            self._samples.append((now, record.first_token))
        if record.prefix is not None and record.prefix.reason and is_diverged(record):
            reason = record.prefix.reason
            self._reasons[reason] = self._reasons.get(reason, 0) + 1

    def close(self) -> None:
        """Nothing is pending."""

    def snapshot(self) -> LiveSnapshot:
        now = self._clock()
        self._advance(now)
        since = now - BUCKET_SECONDS * BUCKETS
        counts = self._metrics.inter_token_counts()
        return LiveSnapshot(
            totals=msgspec.structs.replace(self._totals),
            running=max(0, self._metrics.inflight_requests - self._metrics.queued_requests),
            queued=self._metrics.queued_requests,
            buckets={number: list(bucket) for number, bucket in self._buckets},
            first_token_seconds=[value for at, value in self._samples if at >= since],
            inter_token_counts=[
                now - before for now, before in zip(counts, self._inter_token[0][1], strict=True)
            ],
            errors=list(self._errors),
            reasons=dict(self._reasons),
        )

    def _advance(self, now: float) -> None:
        """Append the buckets from the last one to the current one."""
        number = int(now // BUCKET_SECONDS)
        if not self._buckets or number - self._buckets[-1][0] > BUCKETS:
            self._buckets.clear()
            self._append(number)
        while self._buckets[-1][0] < number:
            self._append(self._buckets[-1][0] + 1)

    def _append(self, number: int) -> None:
        self._buckets.append((number, [0] * len(COLUMNS)))
        self._inter_token.append((number, self._metrics.inter_token_counts()))

    def _add_tokens(self, record: RequestRecord, bucket: list[float]) -> None:
        totals = self._totals
        changed = count_changed_tokens(record)
        bucket[5] += (record.reprefilled or 0) + changed
        totals.reprefilled_tokens += record.reprefilled or 0
        totals.changed_tokens += changed
        if record.usage is None:
            return
        usage = record.usage
        totals.input_tokens += usage.input_tokens
        totals.cached_tokens += usage.cached_tokens
        totals.output_tokens += usage.output_tokens
        totals.reasoning_tokens += usage.reasoning_tokens
        bucket[3] += usage.input_tokens
        bucket[4] += usage.cached_tokens
        self._spread_output(record, usage.output_tokens)

    def _spread_output(self, record: RequestRecord, tokens: int) -> None:
        """Add output tokens to the buckets of the time in which they were generated."""
        last = self._buckets[-1][0]
        begin = record.began + (record.first_token or record.duration)
        end = record.began + (record.last_event or record.duration)
        first = min(last, max(self._buckets[0][0], int(begin // BUCKET_SECONDS)))
        until = min(last, max(first, int(end // BUCKET_SECONDS)))
        share = tokens / (until - first + 1)
        start = first - self._buckets[0][0]
        for _, bucket in islice(self._buckets, start, start + until - first + 1):
            bucket[2] += share


def _error_entry(record: RequestRecord) -> ErrorEntry:
    return ErrorEntry(
        record.began + record.duration,
        record.id,
        record.status,
        record.endpoint,
        "client_disconnected" if record.disconnected else record.error,
        record.reason,
        record.tenant,
        record.session,
    )


def build_live_view(snapshot: LiveSnapshot, now: float) -> dict[str, Any]:
    """Return the statistics as JSON values: rates of the last minute, series, percentiles."""
    last = int(now // BUCKET_SECONDS)
    numbers = range(last - BUCKETS + 1, last + 1)
    empty = [0.0] * len(COLUMNS)
    rows = [snapshot.buckets.get(number, empty) for number in numbers]
    recent = [sum(row[at] for row in rows[-RATE_BUCKETS:]) for at in range(len(COLUMNS))]
    seconds = RATE_BUCKETS * BUCKET_SECONDS
    samples = sorted(snapshot.first_token_seconds)
    return {
        "totals": snapshot.totals,
        "running": snapshot.running,
        "queued": snapshot.queued,
        "rates": {name: total / seconds for name, total in zip(COLUMNS, recent, strict=True)},
        "first_token": {
            "p50": _percentile(samples, 0.5),
            "p99": _percentile(samples, 0.99),
            "count": len(samples),
        },
        "inter_token": {
            "p50": _histogram_quantile(snapshot.inter_token_counts, 0.5),
            "p99": _histogram_quantile(snapshot.inter_token_counts, 0.99),
            "count": sum(snapshot.inter_token_counts),
        },
        "series": {
            "step": BUCKET_SECONDS,
            "end": (last + 1) * BUCKET_SECONDS,
            **{name: [round(row[at], 2) for row in rows] for at, name in enumerate(COLUMNS)},
        },
        "errors": list(reversed(snapshot.errors)),
        "reasons": dict(sorted(snapshot.reasons.items(), key=lambda item: -item[1])),
    }


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return a percentile by the nearest rank."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _histogram_quantile(counts: Sequence[int], share: float) -> float | None:
    """Return a quantile of a histogram, interpolated inside its bucket as Prometheus does."""
    total = sum(counts)
    if not total:
        return None
    cumulative, running = [], 0
    for count in counts:
        running += count
        cumulative.append(running)
    at = bisect_left(cumulative, share * total)
    if at >= len(INTER_TOKEN_BUCKETS_SECONDS):
        return INTER_TOKEN_BUCKETS_SECONDS[-1]
    low = INTER_TOKEN_BUCKETS_SECONDS[at - 1] if at else 0.0
    before = cumulative[at - 1] if at else 0
    inside = (share * total - before) / max(1, counts[at])
    return low + (INTER_TOKEN_BUCKETS_SECONDS[at] - low) * inside
