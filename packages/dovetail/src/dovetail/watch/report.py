"""What was found out, in words: a line for each exchange, and the summary.

A `~` stands before every number of tokens that the server's own counts do not bear out.
"""

import time
from collections.abc import Iterable
from typing import Any

import msgspec

from dovetail.watch.analysis import Summary, Sums, median
from dovetail.watch.verdict import Basis, Code, Finding, Verdict

_MOST_SESSIONS = 50  # in the summary; programs get more

MEANING: dict[Code, str] = {
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
ADVICE: dict[Code, str] = {
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
BASES: dict[Basis, str] = {
    "confirmed": "by the model's own tokenizer and template, and as many as the server counted",
    "counted": "by the model's own tokenizer and template (~); the server gave no counts",
    "estimated": "estimated (~): the server counts otherwise, or there is no tokenizer here",
}


def line(verdict: Verdict) -> str:
    """One exchange in one line."""
    one = verdict
    clock = time.strftime("%H:%M:%S", time.localtime(one.began))
    status = "cut off" if one.cut else str(one.status)
    head = f"{clock} {one.session} #{one.place} {one.api} {status} {one.duration:.1f} s"
    parts = [head, _tokens_of(one), _why(one), *(_finding(f) for f in one.findings)]
    if one.unread:
        parts.append(one.unread)
    return " | ".join(part for part in parts if part)


def _tokens_of(one: Verdict) -> str:
    if one.served is None or one.exact is None:
        return "" if one.prompt_tokens is None else f"prompt {one.prompt_tokens:,}"
    mark = "" if one.basis == "confirmed" else "~"
    prefix, verb = (one.exact, "saved") if one.fixed else (one.served, "needlessly")
    left = f"{mark}{prefix.again:,} of {mark}{prefix.total:,} to compute"
    cached = "" if one.cached is None else f" (server: {one.cached:,} cached)"
    needless = f", {mark}{one.needless:,} {verb}" if one.needless else ""
    return left + cached + needless


def _why(one: Verdict) -> str:
    return "" if one.broke is None else _finding(one.broke)


def _finding(finding: Finding) -> str:
    detail = f" ({finding.detail})" if finding.detail else ""
    return MEANING[finding.code] + _printable(detail)


def summary_text(summary: Summary, unobserved: dict[str, int], others: int = 0) -> str:
    """The report for people."""
    whole = summary.whole
    lines = [
        f"{_many(whole.requests, 'request')} in {_many(summary.begun, 'session')}"
        + (f" ({_counted(whole.apis)}; models: {_names(whole.models)})" if whole.requests else "")
        + (f"; {_many(others, 'other exchange')} passed on" if others else "")
    ]
    if whole.failed or whole.unread:
        lines.append(f"{whole.failed} failed, {whole.unread} not understood or not compared")
    lines += [f"{count} × {_printable(why)}" for why, count in unobserved.items()]
    if whole.prompt:
        lines += ["", "Tokens", *_totals(whole)]
        lines += [f"  {n} × {BASES[basis]}" for basis, n in whole.bases.items()]
    if whole.counts:
        lines += ["", *_causes(whole)]
    elif whole.prompt:
        lines += ["", "Nothing was lost."]
    lines += _times(whole)
    if summary.begun > 1:
        lines += ["", *_sessions(summary)]
    return "\n".join(lines)


def _totals(sums: Sums) -> list[str]:
    mark = _mark(sums)
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
    lines = [f"  {name:28}{mark + format(n, ','):>12}  {_share(n, sums)}" for name, n in rows]
    if sums.tells_cached:
        share = f"of {sums.told_prompt:,}"
        lines.append(f"  {'cached, as the server says':28}{sums.told_cached:>12,}  {share}")
    return lines


def _share(tokens: int, sums: Sums) -> str:
    return f"{100 * tokens / sums.prompt:5.1f} %" if sums.prompt else ""


def _causes(sums: Sums) -> list[str]:
    """Each thing that went wrong, the costliest first."""
    mark = _mark(sums)
    lines = ["What went wrong"]
    for code in sorted(sums.counts, key=lambda c: (-sums.costs[c], -sums.counts[c])):
        cost = f", {mark}{sums.costs[code]:,} tokens needlessly" if sums.costs[code] else ""
        lines.append(f"  {sums.counts[code]} × {MEANING[code]}{cost}")
        if code in sums.examples:
            lines.append(f"      such as {_printable(sums.examples[code])}")
        lines.append(f"      {ADVICE[code]}")
    return lines


def _times(sums: Sums) -> list[str]:
    lines = []
    if sums.thoughts or sums.calls:
        lines += [
            "",
            f"{_many(sums.thoughts, 'answer')} with thoughts, {_many(sums.calls, 'call')} in all.",
        ]
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


def _sessions(summary: Summary) -> list[str]:
    shown = list(summary.sessions.values())[-_MOST_SESSIONS:]
    left_out = summary.begun - len(shown)
    title = f"Sessions, the last {len(shown)} of {summary.begun}" if left_out else "Sessions"
    return [title, *map(_session, shown)]


def _session(sums: Sums) -> str:
    mark = _mark(sums)
    causes = ", ".join(f"{count} × {code}" for code, count in sums.counts.most_common())
    return (
        f"  {sums.label}: {_many(sums.requests, 'request')}, "
        f"{mark}{sums.prompt:,} tokens in prompts, "
        f"{mark}{sums.prefilled:,} to compute, {mark}{sums.needless:,} needlessly"
        + (f" ({causes})" if causes else "")
    )


def as_json(summary: Summary, unobserved: dict[str, int], others: int = 0) -> dict[str, Any]:
    """The report for programs."""
    return {
        "whole": _plain(summary.whole),
        "sessions_begun": summary.begun,
        "sessions": [_plain(one) for one in summary.sessions.values()],
        "unobserved": dict(unobserved),
        "other_exchanges": others,
        "exchanges": msgspec.to_builtins(list(summary.newest)),
    }


def _plain(sums: Sums) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(sums, enc_hook=list)  # medians are of deques
    return found


def _mark(sums: Sums) -> str:
    return "~" if sums.estimated else ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(_printable(name) for name in names) or "-"


def _printable(text: str) -> str:
    """Nothing that would move a cursor: some of it comes from clients."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
