"""Present results of simulations: a table for the terminal and an SVG chart."""

from collections.abc import Sequence
from html import escape

from rich.table import Table

from dovetail.simulate.session_engine import EngineModel
from dovetail.simulate.session_simulation import SessionResult
from dovetail.simulate.simulation import SimulationResult

_WIDTH, _ROW, _LEFT, _PANEL, _GAP = 900, 22, 130, 200, 60
_FONT = 'font-family="sans-serif" font-size="12"'
#: A title, the values of the rows and their format.
Panel = tuple[str, Sequence[float], str]
_COLORS = ("#2563eb", "#059669", "#d97706", "#7c3aed")


def build_table(results: Sequence[SimulationResult]) -> Table:
    """Build a table with one row per policy."""
    table = Table("policy", box=None, pad_edge=False)
    for head in ("hit rate", "TTFT p50", "TTFT p99", "balance", "prefilled", "moved"):
        table.add_column(head, justify="right")
    for one in results:
        table.add_row(one.policy, *_cells(one))
    return table


def build_session_table(results: Sequence[SessionResult], model: EngineModel) -> Table:
    """Build a table with one row per way of scheduling sessions."""
    table = Table("scheduling", box=None, pad_edge=False)
    heads = ("sessions/h", "makespan", "TTFT p50", "p95", "turn p50", "p95")
    for head in (*heads, "re-prefilled", "Jain", "delayed", "over 300 s"):
        table.add_column(head, justify="right")
    for one in results:
        times = (one.ttft(0.5), one.ttft(0.95), one.latency(0.5), one.latency(0.95))
        table.add_row(
            one.policy,
            f"{one.sessions_per_hour:.1f}",
            f"{one.makespan_seconds:.0f}s",
            *(f"{seconds:.2f}s" for seconds in times),
            f"{one.re_prefilled_tokens:,}",
            f"{one.fairness(model):.3f}",
            str(one.delayed_turns),
            str(one.timeouts),
        )
    return table


def _cells(one: SimulationResult) -> list[str]:
    return [
        f"{one.hit_rate:.3f}",
        f"{one.ttft(0.5):.3f}s",
        f"{one.ttft(0.99):.3f}s",
        f"{one.balance:.2f}",
        f"{sum(one.prefilled_tokens):,}",
        str(one.moved_sessions),
    ]


def build_plot(results: Sequence[SimulationResult], title: str) -> str:
    """Build an SVG with a bar per policy for the hit rate, the TTFT and the balance."""
    panels: list[Panel] = [
        ("hit rate", [one.hit_rate for one in results], "{:.3f}"),
        ("TTFT p99 (s)", [one.ttft(0.99) for one in results], "{:.2f}"),
        ("balance (most / mean)", [one.balance for one in results], "{:.2f}"),
    ]
    return draw_bars([one.policy for one in results], panels, title)


def build_session_plot(results: Sequence[SessionResult], title: str) -> str:
    """Build an SVG with a bar per way of scheduling sessions."""
    panels: list[Panel] = [
        ("sessions per hour", [one.sessions_per_hour for one in results], "{:.0f}"),
        ("re-prefilled tokens", [one.re_prefilled_tokens for one in results], "{:,.0f}"),
        ("TTFT p95 (s)", [one.ttft(0.95) for one in results], "{:.1f}"),
    ]
    return draw_bars([one.policy for one in results], panels, title)


def draw_bars(rows: Sequence[str], panels: Sequence[Panel], title: str) -> str:
    """Draw an SVG with a panel of bars per measure. Each panel has one value per row."""
    height = 70 + _ROW * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
    ]
    for row, name in enumerate(rows):
        parts.append(f'<text x="10" y="{_bar_top(row) + 12}">{escape(name)}</text>')
    for number, (name, values, form) in enumerate(panels):
        left = _LEFT + number * (_PANEL + _GAP)
        parts.append(f'<text x="{left}" y="44" fill="#555">{escape(name)}</text>')
        parts += _bars(left, values, form)
    return "\n".join([*parts, "</svg>", ""])


def _bars(left: int, values: Sequence[float], form: str) -> list[str]:
    largest = max(values, default=0.0) or 1.0
    parts = []
    for row, value in enumerate(values):
        width, top = value / largest * (_PANEL - 50), _bar_top(row)
        color = _COLORS[row % len(_COLORS)]
        parts += [
            f'<rect x="{left}" y="{top}" width="{width:.1f}" height="15" fill="{color}"/>',
            f'<text x="{left + width + 5:.1f}" y="{top + 12}">{form.format(value)}</text>',
        ]
    return parts


def _bar_top(row: int) -> int:
    return 54 + row * _ROW
