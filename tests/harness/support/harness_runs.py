"""A pytest plugin for runs of real clients: their sandboxes, and a table of all runs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from client_sandbox import Sandbox, create_sandbox
from prefix_exactness import Row, table


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
