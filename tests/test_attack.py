"""The runner of `make attack`: what it judges and prints, and the pages that state its promises."""

from pathlib import Path

from tools.attack import HEAD, table
from tools.attacks.scenario import judge
from tools.attacks.scenarios import SCENARIOS
from tools.attacks.suites import PytestRun

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("docs/security.md", "docs/operations/reliability.md")


def test_measurement_above_its_limit_fails() -> None:
    limits = {"gap_ms": 100, "wrong": 0}
    assert judge(limits, gap_ms=100, wrong=0, sent=999).result == "passed"
    assert judge(limits, gap_ms=101, wrong=0, sent=999).result == "FAILED"
    assert judge(limits, gap_ms=0, wrong=1).result == "FAILED"


def test_table_has_a_row_for_each_scenario() -> None:
    rows = [("some-name", "passed", "gap_ms 3", "gap_ms <= 100", "12"), ("b", "FAILED", "", "", "")]
    lines = table(rows).splitlines()
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == list(HEAD)
    assert "| some-name | passed | gap_ms 3 | gap_ms <= 100 | 12      |" in lines
    assert len({len(line) for line in lines}) == 1


def test_names_of_scenarios_are_unique() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(names) == len(set(names))


def test_tests_of_scenarios_exist_and_are_named_in_the_pages() -> None:
    pages = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    for scenario in SCENARIOS:
        for path in scenario.run.paths if isinstance(scenario.run, PytestRun) else ():
            file, _, test = path.partition("::")
            assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8"), path
            name = file.removeprefix("packages/dovetail/tests/")
            assert f"`{name}`" in pages, f"{scenario.name}: {name} is not named"


def test_scenarios_with_servers_are_named_in_the_pages() -> None:
    pages = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    for scenario in SCENARIOS:
        if not isinstance(scenario.run, PytestRun):
            assert f"`{scenario.name}`" in pages, f"{scenario.name} is not named"
