"""`dovetail usage`: the table, CSV and JSON of a store, and its errors."""

import asyncio
import csv
import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dovetail.cli.main import build_app
from dovetail.usage.counts import UsageCounts, UsageKey, floor_hour
from dovetail.usage.sqlite import SqliteUsageStore
from dovetail.usage.store import FinishedRequest, OpenRequest, UsageBatch

COUNTS = UsageCounts(
    requests=2,
    prompt_tokens=100,
    cached_tokens=60,
    output_tokens=7,
    microseconds=1_500_000,
    cost_nanos=2_500_000,
)


def ran(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build_app(["usage", "keys"]), ["usage", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with usage of today and of ten days ago."""
    monkeypatch.setenv("DOVETAIL_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    async def fill() -> None:
        store = SqliteUsageStore(tmp_path / "usage.sqlite")
        now = floor_hour(time.time())
        finished = tuple(
            FinishedRequest(OpenRequest(at, hour, UsageKey(tenant, "k", "m", "s", "pi")), COUNTS)
            for at, (tenant, hour) in enumerate((("a", now), ("b", now), ("a", now - 864_000)))
        )
        await store.apply(UsageBatch("p", 1, (), finished))
        await store.close()

    asyncio.run(fill())
    return tmp_path


def test_formats(folder: Path) -> None:
    table = ran("--by", "tenant").output.splitlines()
    assert table[0].split() == [
        *("tenant", "requests", "prompt", "cached", "output", "seconds", "cost"),
    ]
    assert table[1].split() == ["a", "4", "200", "120", "14", "3.0", "0.0050"]
    assert table[3].split() == ["total", "6", "300", "180", "21", "4.5", "0.0075"]
    rows = list(csv.DictReader(ran("--by", "tenant,model", "--csv").output.splitlines()))
    assert [(row["tenant"], row["model"], row["cost"]) for row in rows] == [
        *(("a", "m", "0.005"), ("b", "m", "0.0025")),
    ]
    report = json.loads(ran("--by", "tenant", "--since", "2d", "--json").output)
    assert [row["requests"] for row in report["rows"]] == [2, 2]
    assert report["total"]["cost"] == 0.005
    assert json.loads(ran("--by", "", "--json").output)["rows"] == [
        json.loads(ran("--by", "tenant", "--json").output)["total"]
    ]
    assert len(json.loads(ran("--by", "day", "--json").output)["rows"]) == 2


def test_names_of_sessions_are_plain_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client chooses them: neither markup of rich nor escape sequences reach the terminal."""
    monkeypatch.chdir(tmp_path)
    names = ("[/red]", "[bold]b", "\x1b[31mred", "\n=1")

    async def fill() -> None:
        store = SqliteUsageStore(tmp_path / "usage.sqlite")
        hour = floor_hour(time.time())
        finished = tuple(
            FinishedRequest(OpenRequest(at, hour, UsageKey("a", "k", "m", name, "pi")), COUNTS)
            for at, name in enumerate(names)
        )
        await store.apply(UsageBatch("p", 1, (), finished))
        await store.close()

    asyncio.run(fill())
    table = ran("--by", "session", "--data-dir", tmp_path).output.splitlines()
    assert {line.split()[0] for line in table[1:-1]} == {"[/red]", "[bold]b", "?[31mred", "?=1"}
    assert '"\'\n=1"' in ran("--by", "session", "--csv", "--data-dir", tmp_path).output


def test_moment_before_all_usage(folder: Path) -> None:
    report = json.loads(ran("--since", "2020-01-01", "--until", "2020-02-01", "--json").output)
    assert (report["rows"], report["total"]["requests"]) == ([], 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--by", "color"), "unknown dimension 'color'"),
        (("--since", "never"), "--since: must be an age"),
        (("--until", "never"), "--until: must be an age"),
        (("--csv", "--json"), "cannot be combined"),
    ],
)
def test_invalid_flags(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    refused = ran(*arguments)
    assert refused.exit_code == 2
    assert words in " ".join(refused.output.split())


def test_missing_store_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused = ran("--data-dir", tmp_path)
    assert (refused.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert "it has no file usage.sqlite" in refused.output
    assert "GET /admin/usage" in ran("--store", "memory").output
    assert ran("--store", "nonsense").exit_code == 1
