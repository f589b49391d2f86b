"""Plots of a comparison as SVG, drawn with matplotlib, which the extra `plots` installs."""

import io
import re
from collections.abc import Sequence
from typing import Any

from dovetail.compare.comparison import MeasureComparison
from dovetail.settings.installation import install_command

#: Replaced by the text color of the page, so that plots are readable in light and dark.
_INK = "#010203"
_MAX_TASKS = 80
_WIDTH_INCHES = 8.0
_COLORS = {"higher": "#b8651b", "lower": "#2b7a9b"}
_NEUTRAL_COLOR = "#8a8580"
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dovetail",
    "font.family": "sans-serif",
    "font.size": 9,
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK
    ),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
}


class PlotsUnavailable(Exception):
    """matplotlib is not installed."""


def render_plots(measures: Sequence[MeasureComparison]) -> dict[str, str]:
    """Return SVG elements by title: the differences per task, and the effects of all measures."""
    pyplot = _load_pyplot()
    primary = measures[0]
    plots = {}
    with pyplot.rc_context(_STYLE):
        if primary.sample.tasks:
            title = f"Difference per task in {primary.name}, b - a"
            plots[title] = _plot_tasks(pyplot, primary)
        if any(one.effect.standardized is not None for one in measures):
            plots["Standardized differences with 95 % intervals"] = _plot_effects(pyplot, measures)
    return plots


def _load_pyplot() -> Any:
    try:
        import matplotlib
        from matplotlib import pyplot
    except ImportError as error:
        message = f"Plots require matplotlib. Install it with: {install_command('plots')}"
        raise PlotsUnavailable(message) from error
    matplotlib.use("svg")
    return pyplot


def _plot_tasks(pyplot: Any, measure: MeasureComparison) -> str:
    """Draw a dot per task, sorted by difference, and the mean with its interval."""
    found = sorted(zip(measure.sample.differences, measure.sample.tasks, strict=True))
    labeled = len(found) <= _MAX_TASKS
    figure, axes = pyplot.subplots(figsize=(_WIDTH_INCHES, 1 + 0.18 * min(len(found), _MAX_TASKS)))
    rows = range(len(found))
    axes.hlines(rows, 0, [one for one, _ in found], color=_NEUTRAL_COLOR, linewidth=1)
    axes.scatter([one for one, _ in found], rows, s=18, c=[_color(one) for one, _ in found])
    axes.axvline(0, color=_INK, linewidth=0.8)
    if measure.effect.interval is not None:
        axes.axvspan(*measure.effect.interval, color=_NEUTRAL_COLOR, alpha=0.25, linewidth=0)
    axes.axvline(measure.effect.difference, color=_INK, linewidth=0.8, linestyle="--")
    axes.set_yticks(rows if labeled else [])
    if labeled:
        axes.set_yticklabels([task for _, task in found], parse_math=False)
    axes.set_xlabel("b - a per task; dashed: mean; shaded: 95 % interval of the mean")
    return _finish(pyplot, figure)


def _plot_effects(pyplot: Any, measures: Sequence[MeasureComparison]) -> str:
    """Draw the difference of each measure in standard deviations, the primary one at the top."""
    shown = [one for one in reversed(measures) if one.effect.standardized is not None]
    figure, axes = pyplot.subplots(figsize=(_WIDTH_INCHES, 1 + 0.26 * len(shown)))
    for row, one in enumerate(shown):
        effect = one.effect
        color = _COLORS.get(one.verdict, _NEUTRAL_COLOR)
        if effect.interval is not None and effect.deviation:
            ends = [end / effect.deviation for end in effect.interval]
            axes.hlines(row, *ends, color=color, linewidth=1.6)
        axes.scatter([effect.standardized], [row], s=24, c=color, zorder=3)
    axes.axvline(0, color=_INK, linewidth=0.8)
    axes.set_yticks(range(len(shown)))
    axes.set_yticklabels([one.name for one in shown], parse_math=False)
    axes.set_xlabel("b - a in standard deviations of the differences; colored: difference shown")
    return _finish(pyplot, figure)


def _color(difference: float) -> str:
    if not difference:
        return _NEUTRAL_COLOR
    return _COLORS["higher" if difference > 0 else "lower"]


def _finish(pyplot: Any, figure: Any) -> str:
    """Return the figure as an SVG element without the XML prolog and without metadata."""
    target = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(target, format="svg", transparent=True, bbox_inches="tight", metadata=metadata)
    pyplot.close(figure)
    svg = target.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    return re.sub(
        r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r' height="[^"]*pt"', "", svg, count=1)
    )
