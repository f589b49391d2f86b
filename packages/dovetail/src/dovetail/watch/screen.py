"""Where what was found out is told: plain lines, or a table that keeps itself up to date."""

from collections import deque
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dovetail.watch.analysis import Summary
from dovetail.watch.report import line
from dovetail.watch.verdict import Verdict

_LINES = 8  # of the newest exchanges, below the table
_ROWS = 12  # sessions, the newest


class Screen(Protocol):
    """Takes verdicts as they come. Called from the observer's thread."""

    def show(self, verdict: Verdict, summary: Summary) -> None: ...

    def close(self) -> None: ...


class PlainScreen:
    """A line for each exchange."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, verdict: Verdict, summary: Summary) -> None:
        self._console.print(line(verdict), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing is left standing."""


class LiveScreen:
    """A table of sessions and the newest lines, for a terminal."""

    def __init__(self, console: Console) -> None:
        self._newest: deque[str] = deque(maxlen=_LINES)
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._live.start()

    def show(self, verdict: Verdict, summary: Summary) -> None:
        self._newest.append(line(verdict))
        lines = [Text(text, overflow="ellipsis", no_wrap=True) for text in self._newest]
        self._live.update(Group(sessions_table(summary), *lines), refresh=True)

    def close(self) -> None:
        self._live.stop()


def sessions_table(summary: Summary) -> Table:
    """The newest sessions, a row each."""
    table = Table(pad_edge=False, box=None)
    table.add_column("session")
    for name in ("requests", "in prompts", "to compute", "needlessly"):
        table.add_column(name, justify="right")
    table.add_column("what went wrong")
    for sums in list(summary.sessions.values())[-_ROWS:]:
        mark = "~" if sums.estimated else ""
        numbers = (sums.prompt, sums.prefilled, sums.needless)
        causes = ", ".join(f"{count}× {code}" for code, count in sums.counts.most_common(3))
        shown = [f"{mark}{number:,}" for number in numbers]
        table.add_row(Text(sums.label), str(sums.requests), *shown, Text(causes))
    return table


def screen(console: Console) -> Screen:
    return LiveScreen(console) if console.is_terminal else PlainScreen(console)
