"""Where what was found out is told: plain lines, or a table that keeps itself up to date."""

from collections import deque
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dovetail.watch.analysis import TrafficSummary
from dovetail.watch.report import format_exchange
from dovetail.watch.verdict import ExchangeAnalysis

_MAX_RECENT_LINES = 8  # of the newest exchanges, below the table
_MAX_SESSION_ROWS = 12  # sessions, the newest


class WatchDisplay(Protocol):
    """Takes verdicts as they come. Called from the observer's thread."""

    def show(self, verdict: ExchangeAnalysis, summary: TrafficSummary) -> None: ...

    def close(self) -> None: ...


class LineDisplay:
    """A line for each exchange."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, verdict: ExchangeAnalysis, summary: TrafficSummary) -> None:
        self._console.print(format_exchange(verdict), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing is left standing."""


class LiveDisplay:
    """A table of sessions and the newest lines, for a terminal."""

    def __init__(self, console: Console) -> None:
        self._recent: deque[str] = deque(maxlen=_MAX_RECENT_LINES)
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._live.start()

    def show(self, verdict: ExchangeAnalysis, summary: TrafficSummary) -> None:
        self._recent.append(format_exchange(verdict))
        lines = [Text(text, overflow="ellipsis", no_wrap=True) for text in self._recent]
        self._live.update(Group(build_sessions_table(summary), *lines), refresh=True)

    def close(self) -> None:
        self._live.stop()


def build_sessions_table(summary: TrafficSummary) -> Table:
    """The newest sessions, a row each."""
    table = Table(pad_edge=False, box=None)
    table.add_column("session")
    for name in ("requests", "in prompts", "to compute", "needlessly"):
        table.add_column(name, justify="right")
    table.add_column("what went wrong")
    for sums in list(summary.sessions.values())[-_MAX_SESSION_ROWS:]:
        mark = "~" if sums.has_estimates else ""
        numbers = (sums.prompt, sums.prefilled, sums.needless)
        causes = ", ".join(f"{count}× {code}" for code, count in sums.counts.most_common(3))
        shown = [f"{mark}{number:,}" for number in numbers]
        table.add_row(Text(sums.label), str(sums.requests), *shown, Text(causes))
    return table


def create_display(console: Console) -> WatchDisplay:
    return LiveDisplay(console) if console.is_terminal else LineDisplay(console)
