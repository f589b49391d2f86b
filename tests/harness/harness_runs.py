"""What the runs of real clients have in common: places to run in, and the table at the end."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from exactness import Row, table
from sandbox import Sandbox, sandbox


@pytest.fixture
def place(tmp_path: Path) -> Sandbox:
    """A home and a project for one client."""
    return sandbox(tmp_path / "sandbox")


@pytest.fixture
def tell(
    record_property: Callable[[str, object], None], request: pytest.FixtureRequest
) -> Callable[[Sequence[Row]], None]:
    """Puts a run into the table that is printed when all are over."""

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
    told = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "run" and getattr(report, "when", "") == "call"
    ]
    if not told:
        return
    names = list(told[0][1])
    terminalreporter.section(
        "real clients: requests, and how many went on exactly from an earlier one"
    )
    terminalreporter.write_line(f"{'run':<58}" + "".join(f"{name:>14}" for name in names))
    for run, figures in sorted(told):
        terminalreporter.write_line(f"{run:<58}" + "".join(f"{figures[n]:>14,}" for n in names))
