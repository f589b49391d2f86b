"""Format the results: a line per exchange, live displays, and the summary as text and JSON.

A `~` marks token counts that the server's own counts do not confirm.
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

_MAX_LISTED_SESSIONS = 50  # in the text; the JSON has more

FINDING_DESCRIPTIONS: dict[FindingCode, str] = {
    "billing": "the billing line at the start of the system text changed",
    "volatile": "a running counter in the prompt changed",
    "system": "the system text changed",
    "tools": "the tool list changed",
    "switches": "the chat template's variables changed",
    "history": "an earlier turn was edited or removed by the client",
    "thoughts_not_returned": "the client did not send the model's reasoning back",
    "thoughts_not_read": "the reasoning that the client sent back is not in the server's prompt",
    "policy": "the model's template drops the reasoning of finished turns",
    "rewritten": "the client sent a tool call back in a different form than generated",
    "regrouped": "reasoning or text between calls came back in a different order",
    "retokenization": "the same turn became different tokens than the model generated",
    "call_as_text": "the server left a tool call in the text: no tool ran",
}
FINDING_ADVICE: dict[FindingCode, str] = {
    "billing": "`dovetail serve` removes it",
    "volatile": "`dovetail serve` removes it",
    "system": "find out what writes it; if irrelevant, remove it with `dovetail serve "
    "--volatile-pattern`",
    "tools": "load all tools at the start, always in the same order",
    "switches": "do not switch thinking on or off within a session",
    "history": "expected after compaction, a rewind or a fork; otherwise check the client",
    "thoughts_not_returned": "`dovetail serve` stores and restores it",
    "thoughts_not_read": "`dovetail serve` passes it in the field that the template reads",
    "policy": "none, unless a template variable preserves reasoning",
    "rewritten": "`dovetail serve` recognizes the call and replays the model's own tokens",
    "regrouped": "`dovetail serve` preserves the order in which the model generated it",
    "retokenization": "`dovetail serve` replays the model's own tokens",
    "call_as_text": "`dovetail serve` parses it; or configure the server's tool call parser",
}
BASIS_DESCRIPTIONS: dict[TokenBasis, str] = {
    "confirmed": "counted with the model's tokenizer and template, confirmed by the server",
    "counted": "counted with the model's tokenizer and template (~); the server reports no counts",
    "estimated": "estimated (~): the server's counts differ, or no tokenizer was found",
}


def format_exchange(analysis: ExchangeAnalysis) -> str:
    """Format an exchange as one line."""
    clock = time.strftime("%H:%M:%S", time.localtime(analysis.began))
    status = "truncated" if analysis.truncated else str(analysis.status)
    request = f"{analysis.session} #{analysis.place} {analysis.api}"
    head = f"{clock} {request} {status} {analysis.duration:.1f} s"
    parts = [
        head,
        _format_tokens(analysis),
        _format_prefix_break(analysis),
        *(_format_finding(f) for f in analysis.findings),
    ]
    if analysis.unread:
        parts.append(analysis.unread)
    return " | ".join(part for part in parts if part)


def _format_tokens(analysis: ExchangeAnalysis) -> str:
    if analysis.served is None or analysis.exact is None:
        return "" if analysis.prompt_tokens is None else f"prompt {analysis.prompt_tokens:,}"
    mark = "" if analysis.basis == "confirmed" else "~"
    prefix, verb = (analysis.exact, "saved") if analysis.fixed else (analysis.served, "avoidable")
    computed = f"{mark}{prefix.prefill_tokens:,} of {mark}{prefix.total:,} to prefill"
    cached = "" if analysis.cached is None else f" (server: {analysis.cached:,} cached)"
    needless = f", {mark}{analysis.needless:,} {verb}" if analysis.needless else ""
    return computed + cached + needless


def _format_prefix_break(analysis: ExchangeAnalysis) -> str:
    return "" if analysis.broke is None else _format_finding(analysis.broke)


def _format_finding(finding: TrafficFinding) -> str:
    detail = f" ({finding.detail})" if finding.detail else ""
    return FINDING_DESCRIPTIONS[finding.code] + _make_printable(detail)


def format_summary(summary: TrafficSummary, unobserved: dict[str, int], others: int = 0) -> str:
    """Format the summary as text."""
    total = summary.total
    lines = [
        f"{_pluralize(total.requests, 'request')} in {_pluralize(summary.session_count, 'session')}"
        + (
            f" ({_format_counts(total.apis)}; models: {_format_names(total.models)})"
            if total.requests
            else ""
        )
        + (f"; {_pluralize(others, 'other exchange')} forwarded" if others else "")
    ]
    if total.failed or total.unread:
        lines.append(f"{total.failed} failed, {total.unread} not decoded or not compared")
    lines += [f"{count} × {_make_printable(reason)}" for reason, count in unobserved.items()]
    if total.prompt:
        lines += ["", "Tokens", *_format_totals(total)]
        lines += [f"  {n} × {BASIS_DESCRIPTIONS[basis]}" for basis, n in total.bases.items()]
    if total.counts:
        lines += ["", *_format_findings(total)]
    elif total.prompt:
        lines += ["", "No problems found."]
    lines += _format_times(total)
    if summary.session_count > 1:
        lines += ["", *_format_sessions(summary)]
    return "\n".join(lines)


def _format_totals(totals: TrafficTotals) -> list[str]:
    mark = _estimate_mark(totals)
    fixed = totals.fixed == totals.requests
    names = ("to prefill without Dovetail", "to prefill with Dovetail", "saved")
    if not fixed:
        names = ("to prefill", "with exact turns", "avoidable")
    rows = [
        ("prompt tokens", totals.prompt),
        (names[0], totals.prefilled),
        (names[1], totals.prefilled - totals.needless),
        (names[2], totals.needless),
    ]
    lines = [
        f"  {name:28}{mark + format(n, ','):>12}  {_format_share(n, totals)}" for name, n in rows
    ]
    if totals.reports_cached:
        share = f"of {totals.reported_prompt_tokens:,}"
        lines.append(
            f"  {'cached, server-reported':28}{totals.reported_cached_tokens:>12,}  {share}"
        )
    return lines


def _format_share(tokens: int, totals: TrafficTotals) -> str:
    return f"{100 * tokens / totals.prompt:5.1f} %" if totals.prompt else ""


def _format_findings(totals: TrafficTotals) -> list[str]:
    """List each problem, the costliest first."""
    mark = _estimate_mark(totals)
    lines = ["Problems"]
    for code in sorted(totals.counts, key=lambda c: (-totals.costs[c], -totals.counts[c])):
        cost = f", {mark}{totals.costs[code]:,} avoidable tokens" if totals.costs[code] else ""
        lines.append(f"  {totals.counts[code]} × {FINDING_DESCRIPTIONS[code]}{cost}")
        if code in totals.examples:
            lines.append(f"      example: {_make_printable(totals.examples[code])}")
        lines.append(f"      remedy: {FINDING_ADVICE[code]}")
    return lines


def _format_times(totals: TrafficTotals) -> list[str]:
    lines = []
    if totals.reasoning_responses or totals.calls:
        responses = _pluralize(totals.reasoning_responses, "response")
        lines += ["", f"{responses} with reasoning, {_pluralize(totals.calls, 'tool call')}."]
    if totals.dispatch:
        longest = max(totals.dispatch)
        lines.append(
            f"Tool calls were complete {median(totals.dispatch):.2f} s "
            f"(median; at most {longest:.2f} s) before the end of their response: "
            "tools could start that much earlier."
        )
    if totals.tool_gaps:
        lines.append(
            "From a complete call to the request with its result: "
            f"{median(totals.tool_gaps):.2f} s (median), "
            "including the rest of the response and the run time of the tool."
        )
    return lines


def _format_sessions(summary: TrafficSummary) -> list[str]:
    listed = list(summary.sessions.values())[-_MAX_LISTED_SESSIONS:]
    left_out = summary.session_count - len(listed)
    title = (
        f"Sessions, the last {len(listed)} of {summary.session_count}" if left_out else "Sessions"
    )
    return [title, *map(_format_session, listed)]


def _format_session(totals: TrafficTotals) -> str:
    mark = _estimate_mark(totals)
    causes = ", ".join(f"{count} × {code}" for code, count in totals.counts.most_common())
    return (
        f"  {totals.label}: {_pluralize(totals.requests, 'request')}, "
        f"{mark}{totals.prompt:,} prompt tokens, "
        f"{mark}{totals.prefilled:,} to prefill, {mark}{totals.needless:,} avoidable"
        + (f" ({causes})" if causes else "")
    )


def to_summary_json(
    summary: TrafficSummary, unobserved: dict[str, int], others: int = 0
) -> dict[str, Any]:
    """Return the summary as JSON values."""
    return {
        "whole": _totals_to_json(summary.total),
        "sessions_begun": summary.session_count,
        "sessions": [_totals_to_json(one) for one in summary.sessions.values()],
        "unobserved": dict(unobserved),
        "other_exchanges": others,
        "exchanges": msgspec.to_builtins(list(summary.recent)),
    }


def _totals_to_json(totals: TrafficTotals) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(totals, enc_hook=list)  # for deques
    return fields


def _estimate_mark(totals: TrafficTotals) -> str:
    return "~" if totals.has_estimates else ""


def _format_names(names: Iterable[str]) -> str:
    return ", ".join(_make_printable(name) for name in names) or "-"


def _make_printable(text: str) -> str:
    """Replace control characters: some of the text comes from clients."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _pluralize(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _format_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


_MAX_RECENT_LINES = 8  # exchanges below the table
_MAX_SESSION_ROWS = 12  # the latest


class WatchDisplay(Protocol):
    """Shows analyses as they are completed. Called from the observer's thread."""

    def show(self, analysis: ExchangeAnalysis, summary: TrafficSummary) -> None: ...

    def close(self) -> None: ...


class LineDisplay:
    """Prints one line per exchange."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, analysis: ExchangeAnalysis, summary: TrafficSummary) -> None:
        self._console.print(
            format_exchange(analysis), markup=False, highlight=False, soft_wrap=True
        )

    def close(self) -> None:
        """Do nothing."""


class LiveDisplay:
    """Shows a table of sessions and the latest exchanges in a terminal."""

    def __init__(self, console: Console) -> None:
        self._recent: deque[str] = deque(maxlen=_MAX_RECENT_LINES)
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._live.start()

    def show(self, analysis: ExchangeAnalysis, summary: TrafficSummary) -> None:
        self._recent.append(format_exchange(analysis))
        lines = [Text(text, overflow="ellipsis", no_wrap=True) for text in self._recent]
        self._live.update(Group(build_sessions_table(summary), *lines), refresh=True)

    def close(self) -> None:
        self._live.stop()


def build_sessions_table(summary: TrafficSummary) -> Table:
    """Build a table of the latest sessions."""
    table = Table(pad_edge=False, box=None)
    table.add_column("session")
    for name in ("requests", "prompt tokens", "to prefill", "avoidable"):
        table.add_column(name, justify="right")
    table.add_column("problems")
    for totals in list(summary.sessions.values())[-_MAX_SESSION_ROWS:]:
        mark = "~" if totals.has_estimates else ""
        numbers = (totals.prompt, totals.prefilled, totals.needless)
        causes = ", ".join(f"{count}× {code}" for code, count in totals.counts.most_common(3))
        cells = [f"{mark}{number:,}" for number in numbers]
        table.add_row(Text(totals.label), str(totals.requests), *cells, Text(causes))
    return table


def create_display(console: Console) -> WatchDisplay:
    return LiveDisplay(console) if console.is_terminal else LineDisplay(console)
