"""Run tests of the repository as scenarios."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.attacks.scenario import Effort, Outcome, judge
from tools.attacks.seeding import SEED_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
TESTS = Path("packages/dovetail/tests")
NO_TESTS_FOUND = (4, 5)  # exit statuses of pytest


@dataclass(frozen=True)
class PytestRun:
    """Run tests of the repository, by file or node id.

    paths: Relative to the repository.
    """

    paths: tuple[str, ...]

    def __call__(self, effort: Effort) -> Outcome:
        with TemporaryDirectory(prefix="dovetail-attack-") as scratch:
            report = Path(scratch) / "report.xml"
            plugins = ("-p", "no:cacheprovider", "-p", "tools.attacks.seeding")
            options = ("-q", *plugins, "-m", "not long", f"--hypothesis-seed={effort.seed}")
            command = [sys.executable, "-m", "pytest", *options, f"--junitxml={report}"]
            ended = subprocess.run(
                [*command, *self.paths],
                cwd=ROOT,
                env={**os.environ, SEED_VARIABLE: str(effort.seed)},
                capture_output=True,
                text=True,
            )
            if ended.returncode in NO_TESTS_FOUND or not report.exists():
                return Outcome("FAILED", details=ended.stdout + ended.stderr)
            return _outcome(report, ended.stdout)


def run_tests(*names: str) -> PytestRun:
    """Return a scenario that runs tests.

    names: Relative to the tests of `dovetail`, or to the repository if they start with `packages`.
    """
    return PytestRun(
        tuple(name if name.startswith("packages") else str(TESTS / name) for name in names)
    )


def _outcome(report: Path, output: str) -> Outcome:
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in suites:
        for name in counts:
            counts[name] += int(suite.get(name, "0"))
    failed = counts["failures"] + counts["errors"]
    if not failed and counts["skipped"] == counts["tests"]:
        return Outcome("skipped", {"reason": _skip_reason(report)}, details=output)
    skipped = {"skipped": counts["skipped"]} if counts["skipped"] else {}
    return judge({"failed": 0}, output, tests=counts["tests"], failed=failed, **skipped)


def _skip_reason(report: Path) -> str:
    found = ElementTree.parse(report).getroot().find(".//skipped")
    return "" if found is None else found.get("message", "")
