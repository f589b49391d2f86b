"""Rows of results, computed from the measurements of the rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.gpu.scripted_engine import Note


@dataclass(frozen=True)
class Measure:
    """One request: the time to first token at the client, and its note with its number.

    `before_ms` is the time until the request to the engine, `after_ms` the time from the engine's
    first token to the client.
    """

    begun: float
    client_ms: float
    note: Note
    number: int

    @property
    def prefilled(self) -> int:
        return self.note.length - self.note.cached

    @property
    def before_ms(self) -> float:
        return (self.note.begun - self.begun) * 1000

    @property
    def after_ms(self) -> float:
        return self.client_ms - self.before_ms - self.note.first_ms


@dataclass(frozen=True)
class Alone:
    """The same request, to the engine without the server."""

    first_ms: float
    cached: int


def row(
    name: str, title: str, measures: Sequence[Measure], alone: Mapping[int, Alone]
) -> dict[str, Any]:
    """Build a row. The engine alone is included once it has replayed all rounds."""
    replayed = [alone[m.number] for m in measures if m.number in alone]
    whole = len(replayed) == len(measures)
    alone_ms = [one.first_ms for one in replayed] if whole else []
    lists: dict[str, list[Any]] = {
        "prompt_tokens": [m.note.length for m in measures],
        "cached_tokens": [m.note.cached for m in measures],
        "prefilled_tokens": [m.prefilled for m in measures],
        "client_ms": [_rounded(m.client_ms) for m in measures],
        "before_ms": [_rounded(m.before_ms) for m in measures],
        "seam_ms": [_rounded(m.note.first_ms) for m in measures],
        "after_ms": [_rounded(m.after_ms) for m in measures],
        "alone_ms": [_rounded(ms) for ms in alone_ms],
        "alone_prefilled": [
            m.note.length - one.cached for m, one in zip(measures, replayed, strict=False)
        ]
        if whole
        else [],
    }
    medians = {key: middle(values) for key, values in lists.items() if key != "alone_prefilled"}
    return {"name": name, "title": title, "rounds": len(measures), **lists, "median": medians}


def middle(values: Sequence[float]) -> float | None:
    """Return the median, or None without values."""
    return _rounded(median(values)) if values else None


def turns_row(ledger: str, rounds: Sequence[Sequence[Measure]]) -> dict[str, Any]:
    """Return the ten turns of a session, as medians over the rounds."""
    turns = []
    for at, measures in enumerate(zip(*rounds, strict=True), 1):
        summary = row(ledger, ledger, measures, {})
        all_rounds = {name: summary[name] for name in ("prefilled_tokens", "client_ms")}
        names = ("prompt_tokens", "cached_tokens", "prefilled_tokens", "client_ms", "seam_ms")
        turns.append(
            {"turn": at, **{name: summary["median"][name] for name in names}, "all": all_rounds}
        )
    total = {
        name: _rounded(sum(turn[name] for turn in turns))
        for name in ("prefilled_tokens", "client_ms")
    }
    return {"ledger": ledger, "rounds": len(rounds), "turns": turns, "total": total}


def saved(on: Mapping[str, Any], off: Mapping[str, Any]) -> dict[str, float]:
    """Return what the ledger saves in a session."""
    return {name: _rounded(off["total"][name] - on["total"][name]) for name in on["total"]}


def rate_row(via: str, streams: int, runs: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Return the generated tokens and their seconds per run."""
    rates = [tokens / seconds for tokens, seconds in runs]
    return {
        "streams": streams,
        "via": via,
        "tokens": [tokens for tokens, _ in runs],
        "seconds": [round(seconds, 4) for _, seconds in runs],
        "tokens_per_second": [_rounded(rate) for rate in rates],
        "median": middle(rates),
    }


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare the throughput of the server with that of the engine alone."""
    alone = {one["streams"]: one["median"] for one in rows if one["via"] == "alone"}
    return [
        {
            "streams": one["streams"],
            "via": one["via"],
            "ratio": round(one["median"] / alone[one["streams"]], 4),
        }
        for one in rows
        if one["via"] != "alone" and alone.get(one["streams"])
    ]


def _rounded(value: float) -> float:
    return round(value, 3)
