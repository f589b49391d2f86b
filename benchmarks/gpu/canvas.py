"""Drawing of plots: SVG elements, scales, and colours for light and dark screens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

STEPS = (1, 2, 5)
_LIGHT = {
    "card": "fill:#fff",
    "ink": "fill:#333",
    "soft": "fill:#666",
    "grid": "stroke:#ddd",
    "axis": "stroke:#666",
}
_DARK = {
    "card": "fill:#14181d",
    "ink": "fill:#e3e6ea",
    "soft": "fill:#a3abb5",
    "grid": "stroke:#333a42",
    "axis": "stroke:#a3abb5",
}
#: Colours of the series, and lighter ones for a dark background.
_SERIES = (("#2a6f97", "#6db5de"), ("#c1512f", "#ee8a68"), ("#5b8c3e", "#95cc74"))
SERIES = len(_SERIES)


@dataclass(frozen=True)
class Scale:
    """Maps values between two bounds to positions between two points."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def at(self, value: float) -> float:
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Return round numbers between the bounds."""
        if not self.log:
            step = round_step((self.high - self.low) / 5)
            count = math.floor(self.high / step + 1e-9)
            return [step * number for number in range(math.ceil(self.low / step), count + 1)]
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        marks = (step * 10.0**power for power in powers for step in STEPS)
        return [mark for mark in marks if self.low * 0.999 <= mark <= self.high * 1.001]


def linear(values: Sequence[float], start: float, stop: float) -> Scale:
    """Return a scale from zero to a round number above all values."""
    step = round_step((max(values) or 1) / 5)
    return Scale(0, step * math.ceil((max(values) or 1) / step), start, stop)


def logarithmic(values: Sequence[float], start: float, stop: float) -> Scale:
    """Return a logarithmic scale between the round numbers around positive values."""
    low, high = min(values), max(values)
    return Scale(_below(low), _below(high * 1.001, above=True), start, stop, log=True)


def fitting(values: Sequence[float], start: float, stop: float, max_ratio: float = 20.0) -> Scale:
    """Return a linear scale, or a logarithmic one if small values would be invisible."""
    low, high = min(values), max(values)
    wide = low > 0 and high / low > max_ratio
    return logarithmic(values, start, stop) if wide else linear(values, start, stop)


def round_step(rough: float) -> float:
    """Return the next larger of 1, 2, 5, 10, 20 and so on."""
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next((step * power for step in STEPS if step * power >= rough * 0.9999), 10 * power)


def document(width: int, height: int, parts: Sequence[str]) -> str:
    """Return a complete SVG with a background, so that it is readable on any page."""
    light = "".join(f".{name}{{{rule}}}" for name, rule in _LIGHT.items())
    dark = "".join(f".{name}{{{rule}}}" for name, rule in _DARK.items())
    for number, (on_light, on_dark) in enumerate(_SERIES):
        light += f".f{number}{{fill:{on_light}}}.s{number}{{stroke:{on_light}}}"
        dark += f".f{number}{{fill:{on_dark}}}.s{number}{{stroke:{on_dark}}}"
    style = f"<style>{light}@media(prefers-color-scheme:dark){{{dark}}}</style>"
    size = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    ground = f'<rect class="card" width="{width}" height="{height}"/>'
    return "\n".join([head, style, ground, *parts, "</svg>", ""])


def text(
    x: float, y: float, words: str, anchor: str = "middle", kind: str = "ink", size: int = 12
) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text class="{kind}" {where}>{escape(words)}</text>'


def upright(x: float, y: float, words: str) -> str:
    """Return a vertical axis title."""
    where = f'x="{x:.1f}" y="{y:.1f}" transform="rotate(-90 {x:.1f} {y:.1f})"'
    return f'<text class="soft" text-anchor="middle" {where}>{escape(words)}</text>'


def line(start: tuple[float, float], end: tuple[float, float], kind: str, more: str = "") -> str:
    ends = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line class="{kind}" {ends} {more}/>'


def dot(x: float, y: float, kind: str) -> str:
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'


def diamond(x: float, y: float) -> str:
    """Return a hollow diamond, for figures of others."""
    points = (
        f"{x:.1f},{y - 5.5:.1f} {x + 5.5:.1f},{y:.1f} {x:.1f},{y + 5.5:.1f} {x - 5.5:.1f},{y:.1f}"
    )
    return f'<polygon class="axis" points="{points}" fill="none" stroke-width="1.6"/>'


def _below(value: float, above: bool = False) -> float:
    """Return the next round number below or above a value."""
    power = math.floor(math.log10(value))
    marks = [step * 10.0**p for p in (power - 1, power, power + 1) for step in STEPS]
    if above:
        return next(mark for mark in marks if mark >= value * 0.999)
    return [mark for mark in marks if mark < value * 0.999][-1]
