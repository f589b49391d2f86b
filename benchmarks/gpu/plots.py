"""Two plots: the time to first token by case, and the prefill of a session by turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.gpu.canvas import (
    SERIES,
    Scale,
    diamond,
    document,
    dot,
    fitting,
    line,
    logarithmic,
    text,
    upright,
)
from benchmarks.gpu.findings import CASES, Run
from benchmarks.gpu.published import TTFT

WIDTH = 820
LEFT, RIGHT, TOP = 270, 24, 66
ROW = 26  # pixels of a run in a case
APART = 15  # pixels between labels that would overlap
PANEL = 200  # height
_PLOT_RIGHT = 150  # space for the names of curves
_PLOT_LEFT = 74
_COLORS = {"on": 0, "off": 1}
_DASHES = {"solid": "", "dashed": "7 4", "dotted": "2 4"}  # a kind of line for each run


@dataclass(frozen=True)
class _Curve:
    """A session's turns, with the ledger on or off, in one run."""

    ledger: str
    stroke: str
    turns: Sequence[Mapping[str, Any]]

    @property
    def name(self) -> str:
        return f"ledger {self.ledger}" + ("" if self.stroke == "solid" else f", {self.stroke}")

    @property
    def color(self) -> int:
        return _COLORS[self.ledger]


def first_tokens(runs: Sequence[Run]) -> str:
    """Plot each case as a row, on a logarithmic axis. Empty without measurements."""
    shown = [run for run in runs if any(run.values(case, "client_ms") for case in CASES)][:SERIES]
    cases = [case for case in CASES if any(run.values(case, "client_ms") for run in shown)]
    if not cases:
        return ""
    every = [ms for run in shown for case in cases for ms in run.values(case, "client_ms")]
    known = [TTFT[case] for case in cases if case in TTFT]
    scale = logarithmic([*every, *known], LEFT, WIDTH - RIGHT - 90)
    height = ROW * len(shown) + 22
    bottom = TOP + height * len(cases)
    parts = [
        text(16, 24, "Time to first token at the client", "start", size=15),
        *_legend([run.name for run in shown]),
        *_grid_across(scale, bottom),
        text((scale.start + scale.stop) / 2, bottom + 38, "milliseconds, logarithmic", kind="soft"),
    ]
    for number, case in enumerate(cases):
        parts += _case(shown, case, scale, TOP + number * height)
    return document(WIDTH, bottom + 52, parts)


def turns(runs: Sequence[Run]) -> str:
    """Plot the prefilled tokens and TTFT of each turn, with the ledger on and off."""
    shown = list(zip((run for run in runs if run.rows("G")), _DASHES, strict=False))
    curves = [
        _Curve(row["ledger"], stroke, row["turns"])
        for run, stroke in shown
        for row in run.rows("G")
    ]
    if not curves:
        return ""
    title = "A session of interleaved turns, with the ledger on and off"
    strokes = [f"{run.name} ({stroke})" if len(shown) > 1 else run.name for run, stroke in shown]
    attention = ", ".join(strokes)
    second = TOP + PANEL + 62
    parts = [
        text(16, 24, title, "start", size=15),
        text(16, 43, f"attention: {attention}", "start", "soft"),
        *_panel(curves, "prefilled_tokens", "tokens prefilled", TOP),
        *_panel(curves, "client_ms", "TTFT, milliseconds", second),
        text((_PLOT_LEFT + WIDTH - _PLOT_RIGHT) / 2, second + PANEL + 38, "turn", kind="soft"),
    ]
    return document(WIDTH, second + PANEL + 52, parts)


def _case(runs: Sequence[Run], case: str, scale: Scale, top: float) -> list[str]:
    title = next(experiment for run in runs if (experiment := run.experiment(case)))["title"]
    parts = [text(16, top + 18, f"{case}  {title}", "start")]
    for number, run in enumerate(runs):
        took = run.values(case, "client_ms")
        if not took:
            continue
        y = top + 14 + number * ROW
        x = scale.at(median(took))
        ends = (scale.at(min(took)), y), (scale.at(max(took)), y)
        tokens = run.middle(case, "prefilled_tokens")
        prefilled = "" if tokens is None else f", {tokens:,.0f} tokens prefilled"
        words = f"{median(took):,.1f} ms{prefilled}"
        parts.append(line(*ends, f"s{number}", 'stroke-width="2"'))
        parts.append(dot(x, y, f"f{number}"))
        parts.append(_label_next_to(ends[0][0], ends[1][0], y + 4, words))
    if case in TTFT:
        y = top + 14 + len(runs) * ROW - 6
        x = scale.at(TTFT[case])
        parts += [diamond(x, y), text(x + 10, y + 4, f"{TTFT[case]:g} ms", "start", "soft", 11)]
    return parts


def _label_next_to(left: float, right: float, y: float, words: str) -> str:
    """Place a label to the right of a mark, or to its left if there is no space."""
    if right + 7 * len(words) > WIDTH - 8:
        return text(left - 10, y, words, "end")
    return text(right + 10, y, words, "start")


def _legend(names: Sequence[str]) -> list[str]:
    parts, x = [], 22.0
    for number, name in enumerate(names):
        words = f"attention: {name}"
        parts += [dot(x, 44, f"f{number}"), text(x + 10, 48, words, "start", "soft")]
        x += 34 + 7 * len(words)
    return [*parts, diamond(x, 44), text(x + 10, 48, "published, B200", "start", "soft")]


def _grid_across(scale: Scale, bottom: float) -> list[str]:
    parts = []
    for tick in scale.ticks():
        x = scale.at(tick)
        parts += [line((x, TOP), (x, bottom), "grid"), text(x, bottom + 18, f"{tick:,g}")]
    return parts


def _panel(curves: Sequence[_Curve], key: str, title: str, top: float) -> list[str]:
    values = [turn[key] for curve in curves for turn in curve.turns]
    numbers = sorted({turn["turn"] for curve in curves for turn in curve.turns})
    up = fitting(values, top + PANEL, top)
    across = Scale(numbers[0] - 0.5, numbers[-1] + 0.5, _PLOT_LEFT, WIDTH - _PLOT_RIGHT)
    unit = f"{title}, logarithmic" if up.log else title
    parts = [upright(18, top + PANEL / 2, unit)]
    for tick in up.ticks():
        y = up.at(tick)
        parts.append(line((_PLOT_LEFT, y), (WIDTH - _PLOT_RIGHT, y), "grid"))
        parts.append(text(_PLOT_LEFT - 8, y + 4, f"{tick:,g}", "end"))
    parts += [text(across.at(number), top + PANEL + 18, str(number)) for number in numbers]
    ends = []
    for curve in curves:
        spots = [(across.at(turn["turn"]), up.at(turn[key])) for turn in curve.turns]
        style = f'stroke-width="2" stroke-dasharray="{_DASHES[curve.stroke]}"'
        parts += [line(a, b, f"s{curve.color}", style) for a, b in pairwise(spots)]
        parts += [dot(x, y, f"f{curve.color}") for x, y in spots]
        ends.append((spots[-1][1], curve))
    return [*parts, *_names(ends)]


def _names(ends: Sequence[tuple[float, _Curve]]) -> list[str]:
    """Place each curve's name at its end, moved down if it would overlap another."""
    parts, last = [], float("-inf")
    for y, curve in sorted(ends, key=lambda end: end[0]):
        last = max(y, last + APART)
        x = WIDTH - _PLOT_RIGHT + 8
        parts.append(text(x, last + 4, curve.name, "start", f"f{curve.color}"))
    return parts
