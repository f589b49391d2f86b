"""Run tests of the repository as scenarios."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.attacks.scenario import Effort, Outcome

ROOT = Path(__file__).resolve().parents[2]
TESTS = Path("packages/dovetail/tests")
NO_TESTS_FOUND = (4, 5)  # exit statuses of pytest


def run_tests(*names: str, long: bool = False) -> Callable[[Effort], Outcome]:
    """Return a scenario that runs tests, by file or node id.

    names: Relative to the tests of `dovetail`, or to the repository if they start with `packages`.
    long: Include the tests that are marked as long, unless the run is quick.
    """
    paths = [name if name.startswith("packages") else str(TESTS / name) for name in names]

    def run(effort: Effort) -> Outcome:
        marks = () if long and not effort.quick else ("-m", "not long")
        with TemporaryDirectory(prefix="dovetail-attack-") as scratch:
            report = Path(scratch) / "report.xml"
            options = ("-q", "-p", "no:cacheprovider", f"--hypothesis-seed={effort.seed}")
            command = [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", *marks]
            ended = subprocess.run([*command, *paths], cwd=ROOT, capture_output=True, text=True)
            if ended.returncode in NO_TESTS_FOUND or not report.exists():
                return Outcome("FAILED", {}, ended.stdout + ended.stderr)
            return _outcome(report, ended.stdout)

    return run


def _outcome(report: Path, output: str) -> Outcome:
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in suites:
        for name in counts:
            counts[name] += int(suite.get(name, "0"))
    failed = counts["failures"] + counts["errors"]
    if failed:
        return Outcome("FAILED", {"tests": counts["tests"], "failed": failed}, output)
    if counts["skipped"] == counts["tests"]:
        reason = _skip_reason(report)
        return Outcome("skipped", {"reason": reason}, output)
    shown = {"tests": counts["tests"]}
    if counts["skipped"]:
        shown["skipped"] = counts["skipped"]
    return Outcome("passed", shown, output)


def _skip_reason(report: Path) -> str:
    found = ElementTree.parse(report).getroot().find(".//skipped")
    return "" if found is None else found.get("message", "")
