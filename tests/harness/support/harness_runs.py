"""A pytest plugin for runs of real clients: their sandboxes, and a table of all runs.

If DOVETAIL_CLIENT_REPORT names a file, the outcome of the session is written to it as JSON, for
`tools/test_clients.py`.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from client_sandbox import Sandbox, create_sandbox
from prefix_exactness import Row, table
from server_setup import CREATED
from tool_loops import find_loop_steps


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    """A home and a project for one client."""
    return create_sandbox(tmp_path / "sandbox")


@pytest.fixture
def report_run(
    record_property: Callable[[str, object], None], request: pytest.FixtureRequest
) -> Callable[[Sequence[Row]], None]:
    """Add a run to the table that is printed at the end."""

    def run(found: Sequence[Row]) -> None:
        print(table(found))
        figures = {
            "requests": len(found),
            **{kind: sum(row.kind == kind for row in found) for kind in ("exact", "again", "new")},
            "prompt tokens": sum(row.prompt for row in found),
            "computed": sum(row.prompt - row.cached for row in found),
        }
        record_property("run", [request.node.name.removeprefix("test_"), figures])

    return run


def pytest_terminal_summary(terminalreporter: Any) -> None:
    _print_runs(terminalreporter)
    if path := os.environ.get("DOVETAIL_CLIENT_REPORT"):
        outcome = {
            **{kind: _outcomes(terminalreporter, kind) for kind in ("passed", "skipped")},
            "failed": _outcomes(terminalreporter, "failed") + _outcomes(terminalreporter, "error"),
            "loops": _count_reprefilled(),
        }
        Path(path).write_text(json.dumps(outcome))


def _outcomes(terminalreporter: Any, kind: str) -> list[tuple[str, str]]:
    """Return the tests with this outcome, each with the last line of its reason."""
    reports = terminalreporter.stats.get(kind, [])
    if kind == "skipped":
        return [(report.nodeid, str(report.longrepr[-1])) for report in reports]
    return [(report.nodeid, _last_line(report)) for report in reports]


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message).splitlines()[0] if crash and crash.message else ""


def _count_reprefilled() -> list[tuple[str, int, int]]:
    """Return each setup with its number of steps in tool loops and their re-prefilled tokens."""
    found = []
    for setup in CREATED:
        steps = find_loop_steps(setup.generations, setup.family)
        tokens = sum(step.reprefilled for step in steps)
        found.append((setup.folder.parent.name, len(steps), tokens))
    return found


def _print_runs(terminalreporter: Any) -> None:
    runs = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "run" and getattr(report, "when", "") == "call"
    ]
    if not runs:
        return
    names = list(runs[0][1])
    terminalreporter.section(
        "real clients: requests, and how many went on exactly from an earlier one"
    )
    terminalreporter.write_line(f"{'run':<58}" + "".join(f"{name:>14}" for name in names))
    for run, figures in sorted(runs):
        terminalreporter.write_line(f"{run:<58}" + "".join(f"{figures[n]:>14,}" for n in names))
