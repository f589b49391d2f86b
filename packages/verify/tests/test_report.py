"""The report on a server: counts, verdicts, JSON, HTML and the terminal."""

import io
import json
import re
from html.parser import HTMLParser
from itertools import cycle
from pathlib import Path

import pytest
from rich.console import Console

from dovetail_verify.check import Check, CheckOutcome, CheckResult
from dovetail_verify.clauses import CLAUSES
from dovetail_verify.html_report import render_html
from dovetail_verify.report import HARNESS_APIS, HarnessVerdict, VerifyReport, report_to_dict
from dovetail_verify.suite import APIS, BLACK_BOX_CHECKS, SCRIPTED_CHECKS, select_checks
from dovetail_verify.terminal_report import print_report, show_progress

CHECKS = {check.id: check for check in (*BLACK_BOX_CHECKS, *SCRIPTED_CHECKS)}
DOCS = Path(__file__).parents[3] / "docs" / "verify.md"
VOID = {"meta", "br", "link", "img"}


def report(*failed: str, missing: tuple[str, ...] = ()) -> VerifyReport:
    """Return a report in which all checks passed except `failed`."""

    def outcome(check: Check) -> CheckOutcome:
        if check.api in missing:
            return CheckOutcome.NOT_APPLICABLE
        return CheckOutcome.FAIL if check.id in failed else CheckOutcome.PASS

    results = [CheckResult(check, outcome(check), "<b>seen</b>") for check in BLACK_BOX_CHECKS]
    reasons = {api: f"POST {api} returned 404" for api in missing}
    return VerifyReport(
        "http://127.0.0.1:8000", "some-org/some-model", results, reasons, 4096, "1.0"
    )


def verdicts(made: VerifyReport) -> dict[str, HarnessVerdict]:
    return {verdict.harness: verdict for verdict in made.verdicts()}


def test_check_ids_are_unique_and_texts_are_punctuated() -> None:
    ids = [check.id for check in (*BLACK_BOX_CHECKS, *SCRIPTED_CHECKS)]
    assert len(ids) == len(set(ids)) >= 60
    for check in CHECKS.values():
        assert check.api in APIS, check.id
        assert check.title[-1] != ".", check.id
        assert check.why.endswith("."), check.id


def test_every_clause_has_a_check() -> None:
    assert {check.clause.id for check in CHECKS.values()} == set(CLAUSES)


def test_clauses_are_sentences_and_name_known_harnesses() -> None:
    for clause in CLAUSES.values():
        assert clause.sentence.endswith("."), clause.id
        assert set(clause.breaks) <= set(HARNESS_APIS), clause.id


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ([], len(BLACK_BOX_CHECKS)),
        (["messages.errors.too_long"], 1),
        (["*.errors.too_long"], 3),
        (["CC-16"], 1),
        (["cc-16"], 1),
        (["models", "tokens"], 6),
        (["messages.error"], 0),
    ],
)
def test_checks_are_selected_by_id_pattern_or_clause(patterns: list[str], expected: int) -> None:
    assert len(select_checks(BLACK_BOX_CHECKS, patterns)) == expected


def test_server_without_faults_works_with_every_harness() -> None:
    found = verdicts(report())
    assert {verdict.status for verdict in found.values()} == {"works"}
    assert found["Claude Code"].api == "messages"
    assert found["Codex"].api == "responses"


def test_harness_breaks_if_a_required_check_fails() -> None:
    found = verdicts(report("messages.stream.order", "messages.usage.same"))
    assert found["Claude Code"].status == "will break"
    assert found["Claude Code"].breaking == ("messages.stream.order",)
    assert found["Claude Code"].faults == ("messages.usage.same",)
    assert found["Codex"].status == "works"


def test_harness_works_with_faults_if_only_other_checks_fail() -> None:
    found = verdicts(report("messages.cache.billing_line"))
    assert found["Claude Code"].status == "works, with faults"


def test_harness_with_several_apis_gets_the_best_verdict() -> None:
    found = verdicts(report("chat.stream.shape"))
    assert (found["Pi"].status, found["Pi"].api) == ("works", "responses")
    assert (found["OpenCode"].status, found["OpenCode"].api) == ("works", "responses")


def test_missing_api_breaks_its_harness() -> None:
    found = verdicts(report(missing=("responses",)))
    assert found["Codex"].status == "will break"
    assert "API not served" in found["Codex"].reason
    assert found["OpenCode"].api == "chat"


def test_api_without_all_checks_is_not_judged() -> None:
    made = VerifyReport("http://x", "m", [CheckResult(CHECKS["chat.choices"], CheckOutcome.PASS)])
    found = verdicts(made)
    assert found["Claude Code"].status == "not judged"
    assert found["Pi"].status == "not judged"
    assert found["Pi"].reason == "not all checks of this API ran"


def test_json_report_has_all_results() -> None:
    made = json.loads(json.dumps(report_to_dict(report("chat.choices"))))
    assert made["outcomes"] == {
        "pass": len(BLACK_BOX_CHECKS) - 1,
        "fail": 1,
        "not applicable": 0,
        "error": 0,
    }
    assert set(made["harnesses"]) == set(HARNESS_APIS)
    assert made["apis"]["chat"]["fail"] == 1
    (failed,) = [result for result in made["findings"] if result["outcome"] == "fail"]
    assert failed["id"] == "chat.choices"
    assert set(failed) >= {"clause", "sentence", "title", "why", "sent", "came", "note", "seconds"}


class BalancedHtmlParser(HTMLParser):
    """Parser that fails on an unclosed tag and collects the URLs of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_report_is_self_contained_and_escaped() -> None:
    text = render_html(report("chat.choices", "messages.stream.order", missing=("responses",)))
    reader = BalancedHtmlParser()
    reader.feed(text)
    assert reader.open == []
    assert reader.addresses == []
    assert "<script" not in text
    assert "@import" not in text
    assert "url(" not in text
    assert "<b>seen</b>" not in text
    assert "&lt;b&gt;seen" in text
    assert "prefers-color-scheme:dark" in text
    assert "API not served" in text


def test_every_text_of_the_html_report_is_escaped() -> None:
    hostile = "<i>&\"'"
    results = [
        CheckResult(check, outcome, hostile, hostile, hostile)
        for check, outcome in zip(BLACK_BOX_CHECKS, cycle(CheckOutcome), strict=False)
    ]
    text = render_html(VerifyReport(hostile, hostile, results, {"chat": hostile}, 1, hostile))
    reader = BalancedHtmlParser()
    reader.feed(text)
    assert reader.open == []
    assert "<i>" not in text
    assert text.count("&lt;i&gt;&amp;&#34;&#39;") > 3 * len(results)


def test_terminal_report_shows_failures_before_the_summary() -> None:
    made = report("chat.choices", missing=("responses",))
    out = io.StringIO()
    console = Console(file=out, width=100)
    with show_progress(console, len(made.results)) as show:
        for result in made.results:
            show(result.check, None)
            show(result.check, result)
    print_report(console, made, show_all=True)
    text = out.getvalue()
    assert "FAIL  chat.choices" in text
    assert text.index("FAIL  chat.choices") < text.index("API not served")
    assert re.search(r"Codex +will break +responses +API not served", text)
    assert f"{len(made.results_with(CheckOutcome.PASS))} passed, 1 failed" in text


def test_terminal_shows_the_progress_in_one_line() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    (check,) = select_checks(BLACK_BOX_CHECKS, ["chat.choices"])
    with show_progress(console, 1) as show:
        show(check, None)
        show(check, CheckResult(check, CheckOutcome.PASS))
        show(check, CheckResult(check, CheckOutcome.FAIL, "no"))
    assert "chat.choices" in out.getvalue()


def test_documentation_lists_every_clause() -> None:
    text = DOCS.read_text("utf-8")
    for clause in CLAUSES.values():
        row = f"| {clause.id} | {clause.sentence} | {', '.join(clause.breaks)} |"
        assert row in text, f"docs/verify.md lacks: {row}"
    listed = re.findall(r"^\| ([A-Z]+-?[0-9]+) \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(CLAUSES)
