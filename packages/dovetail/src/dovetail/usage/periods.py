"""Days and months in UTC, in which budgets are counted."""

from datetime import UTC, datetime, timedelta


def day_name(time: float) -> str:
    return f"{_utc(time):%Y-%m-%d}"


def month_name(time: float) -> str:
    return f"{_utc(time):%Y-%m}"


def next_day(time: float) -> float:
    """Return when the next day begins."""
    return (_midnight(time) + timedelta(days=1)).timestamp()


def next_month(time: float) -> float:
    """Return when the next month begins."""
    return (_midnight(time).replace(day=1) + timedelta(days=32)).replace(day=1).timestamp()


def _midnight(time: float) -> datetime:
    return _utc(time).replace(hour=0, minute=0, second=0, microsecond=0)


def _utc(time: float) -> datetime:
    return datetime.fromtimestamp(time, UTC)
