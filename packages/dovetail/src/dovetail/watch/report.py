"""What was found out, in words: a line for each exchange, and the summary.

A `~` stands before every number of tokens that the server's own counts do not bear out.
"""

import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dovetail.watch.analysis import (
    ExchangeAnalysis,
    FindingCode,
    TokenBasis,
    TrafficFinding,
    TrafficSummary,
    TrafficTotals,
    median,
)

_MAX_LISTED_SESSIONS = 50  # in the summary; programs get more

FINDING_DESCRIPTIONS: dict[FindingCode, str] = {
    "billing": "the billing line at the start of the system text changed",
    "volatile": "a running counter in the prompt changed",
    "system": "the system text changed",
    "tools": "the tool list changed",
    "switches": "the template's switches changed",
    "history": "an earlier turn was edited or removed by the client",
    "thoughts_not_returned": "the client did not send the model's thoughts back",
    "thoughts_not_read": "the thoughts that the client sent back are not in the server's prompt",
    "policy": "the model's template drops the thoughts of finished turns",
    "rewritten": "the client sent a call back in other words than the model's",
    "regrouped": "thoughts or text between calls came back in another order",
    "retokenization": "the same turn became other tokens than the model generated",
    "call_as_text": "the server left a call of the model in its text: no tool ran",
}
FINDING_ADVICE: dict[FindingCode, str] = {
    "billing": "`dovetail serve` takes it out",
    "volatile": "`dovetail serve` takes it out",
    "system": "look for what writes it; if it means nothing, `dovetail serve --volatile-pattern`",
    "tools": "load all tools at the start, always in the same order",
    "switches": "keep thinking on or off for a whole session",
    "history": "expected after compaction, a rewind or a fork; else look at the client",
    "thoughts_not_returned": "`dovetail serve` keeps them and puts them back",
    "thoughts_not_read": "`dovetail serve` renders them where the template looks for them",
    "policy": "nothing, or a switch of the template that keeps them",
    "rewritten": "`dovetail serve` recognises the call and replays the model's own tokens",
    "regrouped": "`dovetail serve` keeps the order in which the model spoke",
    "retokenization": "`dovetail serve` replays the model's own tokens",
    "call_as_text": "`dovetail serve` parses it; or give the server its model's tool parser",
}
BASIS_DESCRIPTIONS: dict[TokenBasis, str] = {
    "confirmed": "by the model's own tokenizer and template, and as many as the server counted",
    "counted": "by the model's own tokenizer and template (~); the server gave no counts",
    "estimated": "estimated (~): the server counts otherwise, or there is no tokenizer here",
}


def format_exchange(verdict: ExchangeAnalysis) -> str:
    """One exchange in one line."""
    one = verdict
    clock = time.strftime("%H:%M:%S", time.localtime(one.began))
    status = "cut off" if one.cut else str(one.status)
    head = f"{clock} {one.session} #{one.place} {one.api} {status} {one.duration:.1f} s"
    parts = [
        head,
        _format_tokens(one),
        _format_prefix_break(one),
        *(_format_finding(f) for f in one.findings),
    ]
    if one.unread:
        parts.append(one.unread)
    return " | ".join(part for part in parts if part)


def _format_tokens(one: ExchangeAnalysis) -> str:
    if one.served is None or one.exact is None:
        return "" if one.prompt_tokens is None else f"prompt {one.prompt_tokens:,}"
    mark = "" if one.basis == "confirmed" else "~"
    prefix, verb = (one.exact, "saved") if one.fixed else (one.served, "needlessly")
    left = f"{mark}{prefix.prefill_tokens:,} of {mark}{prefix.total:,} to compute"
    cached = "" if one.cached is None else f" (server: {one.cached:,} cached)"
    needless = f", {mark}{one.needless:,} {verb}" if one.needless else ""
    return left + cached + needless


def _format_prefix_break(one: ExchangeAnalysis) -> str:
    return "" if one.broke is None else _format_finding(one.broke)


def _format_finding(finding: TrafficFinding) -> str:
    detail = f" ({finding.detail})" if finding.detail else ""
    return FINDING_DESCRIPTIONS[finding.code] + _make_printable(detail)


def format_summary(summary: TrafficSummary, unobserved: dict[str, int], others: int = 0) -> str:
    """The report for people."""
    whole = summary.total
    lines = [
        f"{_pluralize(whole.requests, 'request')} in {_pluralize(summary.session_count, 'session')}"
        + (
            f" ({_format_counts(whole.apis)}; models: {_format_names(whole.models)})"
            if whole.requests
            else ""
        )
        + (f"; {_pluralize(others, 'other exchange')} passed on" if others else "")
    ]
    if whole.failed or whole.unread:
        lines.append(f"{whole.failed} failed, {whole.unread} not understood or not compared")
    lines += [f"{count} × {_make_printable(why)}" for why, count in unobserved.items()]
    if whole.prompt:
        lines += ["", "Tokens", *_format_totals(whole)]
        lines += [f"  {n} × {BASIS_DESCRIPTIONS[basis]}" for basis, n in whole.bases.items()]
    if whole.counts:
        lines += ["", *_format_findings(whole)]
    elif whole.prompt:
        lines += ["", "Nothing was lost."]
    lines += _format_times(whole)
    if summary.session_count > 1:
        lines += ["", *_format_sessions(summary)]
    return "\n".join(lines)


def _format_totals(sums: TrafficTotals) -> list[str]:
    mark = _estimate_mark(sums)
    fixed = sums.fixed == sums.requests
    names = ("to compute for a server", "to compute with Dovetail", "saved")
    if not fixed:
        names = ("to compute", "with exact turns", "computed needlessly")
    rows = [
        ("in prompts", sums.prompt),
        (names[0], sums.prefilled),
        (names[1], sums.prefilled - sums.needless),
        (names[2], sums.needless),
    ]
    lines = [
        f"  {name:28}{mark + format(n, ','):>12}  {_format_share(n, sums)}" for name, n in rows
    ]
    if sums.tells_cached:
        share = f"of {sums.told_prompt:,}"
        lines.append(f"  {'cached, as the server says':28}{sums.told_cached:>12,}  {share}")
    return lines


def _format_share(tokens: int, sums: TrafficTotals) -> str:
    return f"{100 * tokens / sums.prompt:5.1f} %" if sums.prompt else ""


def _format_findings(sums: TrafficTotals) -> list[str]:
    """Each thing that went wrong, the costliest first."""
    mark = _estimate_mark(sums)
    lines = ["What went wrong"]
    for code in sorted(sums.counts, key=lambda c: (-sums.costs[c], -sums.counts[c])):
        cost = f", {mark}{sums.costs[code]:,} tokens needlessly" if sums.costs[code] else ""
        lines.append(f"  {sums.counts[code]} × {FINDING_DESCRIPTIONS[code]}{cost}")
        if code in sums.examples:
            lines.append(f"      such as {_make_printable(sums.examples[code])}")
        lines.append(f"      {FINDING_ADVICE[code]}")
    return lines


def _format_times(sums: TrafficTotals) -> list[str]:
    lines = []
    if sums.thoughts or sums.calls:
        answers = _pluralize(sums.thoughts, "answer")
        lines += ["", f"{answers} with thoughts, {_pluralize(sums.calls, 'call')} in all."]
    if sums.dispatch:
        most = max(sums.dispatch)
        lines.append(
            f"A call was complete {median(sums.dispatch):.2f} s (median; at most {most:.2f} s) "
            "before its answer ended: so much sooner could its tool have been started."
        )
    if sums.tool_gaps:
        lines.append(
            f"From a complete call to the request with its result: {median(sums.tool_gaps):.2f} s "
            "(median), the rest of the answer and the tool's own time in it."
        )
    return lines


def _format_sessions(summary: TrafficSummary) -> list[str]:
    shown = list(summary.sessions.values())[-_MAX_LISTED_SESSIONS:]
    left_out = summary.session_count - len(shown)
    title = (
        f"Sessions, the last {len(shown)} of {summary.session_count}" if left_out else "Sessions"
    )
    return [title, *map(_format_session, shown)]


def _format_session(sums: TrafficTotals) -> str:
    mark = _estimate_mark(sums)
    causes = ", ".join(f"{count} × {code}" for code, count in sums.counts.most_common())
    return (
        f"  {sums.label}: {_pluralize(sums.requests, 'request')}, "
        f"{mark}{sums.prompt:,} tokens in prompts, "
        f"{mark}{sums.prefilled:,} to compute, {mark}{sums.needless:,} needlessly"
        + (f" ({causes})" if causes else "")
    )


def to_summary_json(
    summary: TrafficSummary, unobserved: dict[str, int], others: int = 0
) -> dict[str, Any]:
    """The report for programs."""
    return {
        "whole": _totals_to_json(summary.total),
        "sessions_begun": summary.session_count,
        "sessions": [_totals_to_json(one) for one in summary.sessions.values()],
        "unobserved": dict(unobserved),
        "other_exchanges": others,
        "exchanges": msgspec.to_builtins(list(summary.recent)),
    }


def _totals_to_json(sums: TrafficTotals) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(sums, enc_hook=list)  # medians are of deques
    return found


def _estimate_mark(sums: TrafficTotals) -> str:
    return "~" if sums.has_estimates else ""


def _format_names(names: Iterable[str]) -> str:
    return ", ".join(_make_printable(name) for name in names) or "-"


def _make_printable(text: str) -> str:
    """Nothing that would move a cursor: some of it comes from clients."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _pluralize(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _format_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


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
