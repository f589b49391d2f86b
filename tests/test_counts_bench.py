"""The benchmark of calls, system calls and wake-ups: its parts, and a short run."""

import os
from pathlib import Path

import pytest
from benchmarks.counts.__main__ import main, package_of
from benchmarks.counts.counters import count_wakeups, parse_summary
from benchmarks.frontend.load import missing

SUMMARY = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000600           6       100           epoll_pwait
 40.00    0.000400           8        50        12 futex
------ ----------- ----------- --------- --------- ----------------
100.00    0.001000           6       150        12 total
"""


def test_the_summary_of_strace_is_parsed_without_its_total() -> None:
    assert parse_summary(SUMMARY) == {"epoll_pwait": 100, "futex": 50}


def test_wakeups_grow_when_a_process_waits() -> None:
    before = count_wakeups(os.getpid())
    reader, writer = os.pipe()
    with open(reader, "rb"), open(writer, "wb"):
        pass
    assert count_wakeups(os.getpid()) >= before > 0


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("dovetail/pipeline/generation.py:1 Generation.feed", "dovetail/pipeline"),
        ("dovetail_model/fold.py:2 Fold.add", "dovetail_model/fold.py"),
        ("uvicorn/protocols/http/httptools_impl.py:3 x", "uvicorn"),
        ("/usr/lib/python3.11/contextlib.py:4 x", "standard library"),
    ],
)
def test_packages_of_functions(name: str, package: str) -> None:
    assert package_of(name) == package


def test_a_short_run(capsys: pytest.CaptureFixture[str]) -> None:
    lacking = missing()
    if lacking:
        pytest.skip(lacking)
    assert main(["--only", "whole", "--api", "chat", "--seconds", "1"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| the"))
    python, native = (float(cell) for cell in row.split("|")[2:4])
    assert 300 < python < 10_000
    assert 300 < native < 10_000


def test_the_page_of_speed_names_the_benchmark() -> None:
    page = Path(__file__).parents[1] / "docs" / "speed.md"
    assert "python -m benchmarks.counts" in page.read_text("utf-8")
