"""Plots as SVG without a library: curves over a logarithmic axis."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 40, 52
COLORS = ("#2a6f97", "#c1512f", "#5b8c3e", "#7a5195")
STYLE = 'font-family="sans-serif" font-size="12" fill="#333"'
STEPS = (1, 2, 5)

Point = tuple[float, float]


def plot(title: str, across: str, up: str, curves: Mapping[str, Sequence[Point]]) -> str:
    """Draw curves of (x, y): x on a logarithmic axis, y from zero."""
    axes = _Axes([point for points in curves.values() for point in points])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {STYLE}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(LEFT, 22, title, "start", 'font-size="14"'),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, across),
        _text(16, HEIGHT / 2, up, "middle", f'transform="rotate(-90 16 {HEIGHT / 2})"'),
        *axes.drawn(),
    ]
    for color, (name, points) in zip(COLORS, curves.items(), strict=False):
        parts += _curve(axes, name, points, color)
    return "\n".join([*parts, "</svg>", ""])


class _Axes:
    """Maps values to positions in the plot."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._xs = sorted({x for x, _ in points})
        self._low, self._high = math.log(self._xs[0]), math.log(self._xs[-1])
        self.step = _round_step(max(y for _, y in points) / 5)
        self._top = self.step * math.ceil(max(y for _, y in points) / self.step)

    def x(self, value: float) -> float:
        share = (math.log(value) - self._low) / ((self._high - self._low) or 1)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self._top * (HEIGHT - TOP - BOTTOM)

    def drawn(self) -> list[str]:
        """Return grid lines and labels."""
        parts = []
        for number in range(round(self._top / self.step) + 1):
            value = number * self.step
            at = self.y(value)
            parts.append(_line(LEFT, at, WIDTH - RIGHT, at, "#ddd"))
            parts.append(_text(LEFT - 8, at + 4, f"{value:g}", "end"))
        for value in self._xs:
            at = self.x(value)
            parts.append(_line(at, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 5, "#333"))
            parts.append(_text(at, HEIGHT - BOTTOM + 19, f"{value / 1000:.3g}k"))
        return parts


def _curve(axes: _Axes, name: str, points: Sequence[Point], color: str) -> list[str]:
    spots = [(axes.x(x), axes.y(y)) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    parts = [f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>']
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in spots]
    end_x, end_y = spots[-1]
    return [*parts, _text(end_x + 10, end_y + 4, name, "start", f'style="fill:{color}"')]


def _round_step(rough: float) -> float:
    """Return the next larger of 1, 2, 5, 10, 20 and so on."""
    power: float = 10 ** math.floor(math.log10(rough))
    return next((step * power for step in STEPS if step * power >= rough), 10 * power)


def _line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'
