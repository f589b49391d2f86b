"""Usage reports: which usage to read, and its rows as JSON and CSV."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from dovetail.usage.counts import DIMENSIONS, HOUR_SECONDS, UsageCounts, floor_hour
from dovetail.usage.prices import NANOS
from dovetail.usage.store import UsageQuery, UsageRow, UsageStore

GROUPS = (*DIMENSIONS, "day", "hour")
COLUMNS = (
    *("requests", "failed", "running", "interrupted"),
    *("prompt_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"),
    *("reprefilled_tokens", "seconds", "cost"),
)
DEFAULT_SINCE = "30d"
_UNITS = {"h": HOUR_SECONDS, "d": 86_400, "w": 7 * 86_400}
_AGE = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_LAST_TIME = datetime(9999, 12, 31, tzinfo=UTC).timestamp()  # a later one cannot be formatted
_FORMULA_CHARS = "=+-@\t\r\n"  # at the start of a cell, spreadsheets run the rest

Json = dict[str, Any]


def parse_query(by: str, since: str, until: str, now: float) -> UsageQuery:
    """Parse the parameters of a report. Raises ValueError for invalid ones."""
    names = tuple(name.strip() for name in by.split(",") if name.strip())
    for name in names:
        if name not in GROUPS:
            raise ValueError(f"by: unknown dimension {name!r}; expected {', '.join(GROUPS)}")
        if names.count(name) > 1:
            raise ValueError(f"by: {name} is listed more than once")
    start = floor_hour(_parse_time("since", since or DEFAULT_SINCE, now))
    end = None if not until else _ceil_hour(_parse_time("until", until, now))
    if end is not None and end <= start:
        raise ValueError("until: must be later than since")
    return UsageQuery(names, start, end)


async def build_report(store: UsageStore, query: UsageQuery, now: float) -> Json:
    """Read usage and return the report as JSON values."""
    rows = await store.read(query)
    total = UsageRow((), sum((row.counts for row in rows), UsageCounts()))
    running = sum(row.running for row in rows)
    return {
        "object": "usage",
        "since": format_time(query.since or 0),
        "until": format_time(now if query.until is None else query.until),
        "by": list(query.by),
        "rows": [row_values(query.by, row) for row in rows],
        "total": row_values((), UsageRow((), total.counts, running)),
    }


def row_values(by: Sequence[str], row: UsageRow) -> Json:
    """Return the columns of a row."""
    groups = {
        name: format_time(value) if isinstance(value, int) else value
        for name, value in zip(by, row.group, strict=True)
    }
    if "day" in groups:
        groups["day"] = groups["day"][: len("2026-11-18")]
    counts = row.counts
    values = {
        "running": row.running,
        "seconds": counts.microseconds / 1e6,
        "cost": counts.cost_nanos / NANOS,
    }
    return groups | {
        name: values[name] if name in values else getattr(counts, name) for name in COLUMNS
    }


def format_csv(report: Json) -> str:
    """Return the rows of a report as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = [*report["by"], *COLUMNS]
    writer.writerow(heads)
    rows: Iterable[Json] = report["rows"]
    writer.writerows([_csv_cell(row[name]) for name in heads] for row in rows)
    return text.getvalue()


def format_time(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _csv_cell(value: object) -> object:
    """Return a value so that spreadsheets do not run it: clients choose names of sessions."""
    if isinstance(value, str) and value.startswith(tuple(_FORMULA_CHARS)):
        return f"'{value}"
    return value


def _parse_time(name: str, text: str, now: float) -> float:
    """Parse an age (12h, 30d, 2w), or a date or time, in UTC unless it has an offset."""
    if match := _AGE.fullmatch(text):
        return max(0.0, now - int(match[1]) * _UNITS[match[2]])
    try:
        time = datetime.fromisoformat(text)
        seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{name}: must be an age such as 12h, 30d or 2w, or a date such as 2026-11-18"
        ) from None
    return max(0.0, min(seconds, _LAST_TIME))


def _ceil_hour(time: float) -> int:
    return -(int(-time // HOUR_SECONDS) * HOUR_SECONDS)
