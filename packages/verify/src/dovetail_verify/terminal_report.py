"""The report for a terminal, and the progress display of a run."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.padding import Padding
from rich.status import Status
from rich.table import Table
from rich.text import Text

from dovetail_verify.check import Check, CheckOutcome, CheckResult
from dovetail_verify.report import HarnessVerdict, VerifyReport
from dovetail_verify.suite import ProgressCallback

_OUTCOME_COLORS = {
    CheckOutcome.PASS: "green",
    CheckOutcome.FAIL: "red",
    CheckOutcome.ERROR: "red",
    CheckOutcome.NOT_APPLICABLE: "bright_black",
}
_STATUS_COLORS = {"works": "green", "works, with faults": "yellow", "will break": "red"}


@contextmanager
def show_progress(console: Console, total: int) -> Iterator[ProgressCallback]:
    """Show the running check on a terminal; otherwise print one line per result."""
    if not console.is_terminal:
        yield lambda check, result: _print_result(console, check, result)
        return
    with Status("", console=console) as status:
        done = 0

        def show(check: Check, result: CheckResult | None) -> None:
            nonlocal done
            if result is None:
                status.update(f"{done + 1} of {total}  {check.id}")
                return
            done += 1
            if result.outcome in (CheckOutcome.FAIL, CheckOutcome.ERROR):
                _print_result(console, check, result)

        yield show


def print_report(console: Console, report: VerifyReport, *, show_all: bool = False) -> None:
    """Print the failures, then the checks that did not apply, then the summaries."""
    console.print()
    for result in report.failed:
        _print_failure(console, result)
    if show_all:
        console.print(_results_table(report))
    _print_not_applicable(console, report)
    console.print(_api_table(report))
    console.print(_harness_table(report))
    console.print(_summary_line(report), soft_wrap=True)


def _print_result(console: Console, check: Check, result: CheckResult | None) -> None:
    if result is not None:
        line = Text.assemble(
            (f"{result.outcome:<15}", _OUTCOME_COLORS[result.outcome]),
            f"{check.id:<34} {result.message}",
        )
        console.print(line, soft_wrap=True)


def _print_failure(console: Console, result: CheckResult) -> None:
    check = result.check
    head = (f"{result.outcome.upper()}  {check.id}", "bold red")
    console.print(Text.assemble(head, f"  {check.title}"), soft_wrap=True)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in (
        ("found", result.message),
        ("clause", f"{check.clause.id} ({check.clause.source}): {check.clause.sentence}"),
        ("why", check.why),
        ("sent", result.sent),
        ("received", result.received),
    ):
        table.add_row(name, Text(text))
    console.print(Padding(table, (0, 0, 1, 2)))


def _results_table(report: VerifyReport) -> Table:
    table = Table(title="all checks", title_justify="left", pad_edge=False, box=None)
    for name in ("outcome", "check", "clause", "result"):
        table.add_column(name, overflow="fold")
    for result in report.results:
        outcome = Text(result.outcome, _OUTCOME_COLORS[result.outcome])
        check = result.check
        table.add_row(outcome, Text(check.id), check.clause.id, Text(result.message))
    return table


def _print_not_applicable(console: Console, report: VerifyReport) -> None:
    reasons: dict[str, list[str]] = {}
    for result in report.results_with(CheckOutcome.NOT_APPLICABLE):
        reasons.setdefault(result.message, []).append(result.check.id)
    if not reasons:
        return
    console.print(Text("not applicable", "bold"))
    for reason, ids in reasons.items():
        shown = ", ".join(ids) if len(ids) < 4 else f"{', '.join(ids[:2])} and {len(ids) - 2} more"
        console.print(Text.assemble(f"  {reason}: ", (shown, "bright_black")), soft_wrap=True)
    console.print()


def _api_table(report: VerifyReport) -> Table:
    table = Table(pad_edge=False, box=None)
    table.add_column("API")
    for name in ("passed", "failed", "not applicable"):
        table.add_column(name, justify="right")
    table.add_column("")
    for api, counts in report.outcomes_by_api().items():
        failed = counts[CheckOutcome.FAIL] + counts[CheckOutcome.ERROR]
        table.add_row(
            api,
            Text(str(counts[CheckOutcome.PASS]), "green"),
            Text(str(failed), "red" if failed else ""),
            str(counts[CheckOutcome.NOT_APPLICABLE]),
            Text("API not served", "red") if api in report.missing_apis else "",
        )
    return table


def _harness_table(report: VerifyReport) -> Padding:
    table = Table(pad_edge=False, box=None)
    for name in ("harness", "verdict", "API", "reason"):
        table.add_column(name, overflow="fold")
    for verdict in report.verdicts():
        status = Text(verdict.status, _STATUS_COLORS.get(verdict.status, ""))
        table.add_row(verdict.harness, status, verdict.api, Text(explain_verdict(verdict)))
    return Padding(table, (1, 0))


def explain_verdict(verdict: HarnessVerdict, max_ids: int = 4) -> str:
    """Return the reason for a verdict, or the failed checks that decided it."""
    named = verdict.breaking or verdict.faults
    more = f" and {len(named) - max_ids} more" if len(named) > max_ids else ""
    return verdict.reason or f"{', '.join(named[:max_ids])}{more}"


def _summary_line(report: VerifyReport) -> Text:
    failed = len(report.failed)
    colour = "bold red" if failed else "bold green"
    passed, rest = (
        len(report.results_with(CheckOutcome.PASS)),
        len(report.results_with(CheckOutcome.NOT_APPLICABLE)),
    )
    counts = f"{passed} passed, {failed} failed, {rest} not applicable"
    where = f"  {report.model} at {report.address}, {report.seconds:.0f} s"
    return Text.assemble((counts, colour), where)
