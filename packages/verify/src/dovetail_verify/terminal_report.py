"""The report for a terminal, and the sign of life while checks run."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.padding import Padding
from rich.status import Status
from rich.table import Table
from rich.text import Text

from dovetail_verify.check import Check, Finding, Outcome
from dovetail_verify.report import Report, Verdict
from dovetail_verify.run import Progress

_COLOURS = {
    Outcome.PASS: "green",
    Outcome.FAIL: "red",
    Outcome.ERROR: "red",
    Outcome.NOT_APPLICABLE: "bright_black",
}
_STANDINGS = {"works": "green", "works, with faults": "yellow", "will break": "red"}


@contextmanager
def progress(console: Console, total: int) -> Iterator[Progress]:
    """Tells what is being looked at: in a line that stays, or line by line in a file."""
    if not console.is_terminal:
        yield lambda check, finding: _line(console, check, finding)
        return
    with Status("", console=console) as status:
        done = 0

        def show(check: Check, finding: Finding | None) -> None:
            nonlocal done
            if finding is None:
                status.update(f"{done + 1} of {total}  {check.id}")
                return
            done += 1
            if finding.outcome in (Outcome.FAIL, Outcome.ERROR):
                _line(console, check, finding)

        yield show


def tell(console: Console, report: Report, *, everything: bool = False) -> None:
    """Failures first, then what could not be judged, then the summaries."""
    console.print()
    for finding in report.failed:
        _failure(console, finding)
    if everything:
        console.print(_all(report))
    _unjudged(console, report)
    console.print(_apis(report))
    console.print(_harnesses(report))
    console.print(_sum(report), soft_wrap=True)


def _line(console: Console, check: Check, finding: Finding | None) -> None:
    if finding is not None:
        said = Text.assemble(
            (f"{finding.outcome:<15}", _COLOURS[finding.outcome]), f"{check.id:<34} {finding.note}"
        )
        console.print(said, soft_wrap=True)


def _failure(console: Console, finding: Finding) -> None:
    check = finding.check
    head = (f"{finding.outcome.upper()}  {check.id}", "bold red")
    console.print(Text.assemble(head, f"  {check.title}"), soft_wrap=True)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in (
        ("found", finding.note),
        ("clause", f"{check.clause.id} ({check.clause.source}): {check.clause.sentence}"),
        ("why", check.why),
        ("sent", finding.sent),
        ("came", finding.came),
    ):
        table.add_row(name, Text(text))
    console.print(Padding(table, (0, 0, 1, 2)))


def _all(report: Report) -> Table:
    table = Table(title="all checks", title_justify="left", pad_edge=False, box=None)
    for name in ("outcome", "check", "clause", "what was seen"):
        table.add_column(name, overflow="fold")
    for finding in report.findings:
        outcome = Text(finding.outcome, _COLOURS[finding.outcome])
        check = finding.check
        table.add_row(outcome, Text(check.id), check.clause.id, Text(finding.note))
    return table


def _unjudged(console: Console, report: Report) -> None:
    reasons: dict[str, list[str]] = {}
    for finding in report.of(Outcome.NOT_APPLICABLE):
        reasons.setdefault(finding.note, []).append(finding.check.id)
    if not reasons:
        return
    console.print(Text("not applicable", "bold"))
    for reason, ids in reasons.items():
        shown = ", ".join(ids) if len(ids) < 4 else f"{', '.join(ids[:2])} and {len(ids) - 2} more"
        console.print(Text.assemble(f"  {reason}: ", (shown, "bright_black")), soft_wrap=True)
    console.print()


def _apis(report: Report) -> Table:
    table = Table(pad_edge=False, box=None)
    table.add_column("API")
    for name in ("passed", "failed", "not applicable"):
        table.add_column(name, justify="right")
    table.add_column("")
    for api, counts in report.apis().items():
        failed = counts[Outcome.FAIL] + counts[Outcome.ERROR]
        table.add_row(
            api,
            Text(str(counts[Outcome.PASS]), "green"),
            Text(str(failed), "red" if failed else ""),
            str(counts[Outcome.NOT_APPLICABLE]),
            Text("API not served", "red") if api in report.missing else "",
        )
    return table


def _harnesses(report: Report) -> Padding:
    table = Table(pad_edge=False, box=None)
    for name in ("harness", "", "over", "because of"):
        table.add_column(name, overflow="fold")
    for verdict in report.verdicts():
        standing = Text(verdict.standing, _STANDINGS.get(verdict.standing, ""))
        table.add_row(verdict.harness, standing, verdict.api, Text(because(verdict)))
    return Padding(table, (1, 0))


def because(verdict: Verdict, most: int = 4) -> str:
    """The checks that a verdict rests on."""
    named = verdict.breaking or verdict.faults
    more = f" and {len(named) - most} more" if len(named) > most else ""
    return verdict.reason or f"{', '.join(named[:most])}{more}"


def _sum(report: Report) -> Text:
    failed = len(report.failed)
    colour = "bold red" if failed else "bold green"
    passed, rest = len(report.of(Outcome.PASS)), len(report.of(Outcome.NOT_APPLICABLE))
    said = f"{passed} passed, {failed} failed, {rest} not applicable"
    told = f"  {report.model} at {report.address}, {report.seconds:.0f} s"
    return Text.assemble((said, colour), told)
