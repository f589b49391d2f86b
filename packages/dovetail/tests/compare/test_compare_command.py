"""`dovetail compare` with the built-in agent and scripted models: results, resumption, failures."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from compare_tasks import CHECK, SOLVING_TURNS, call_text, write_profile, write_task
from server_process import Ended, clean_environment, dovetail

from dovetail.compare.records import RunRecord
from dovetail.compare.store import read_records

TRUNCATED_TURNS = [{"text": call_text("seq 1 20000")}, *SOLVING_TURNS[1:]]


def run_compare(tmp_path: Path, a: Path, b: Path, *arguments: str) -> Ended:
    command = ("compare", "--tasks", tmp_path / "tasks", "--a", a, "--b", b)
    return dovetail(*command, "--out", tmp_path / "out", *arguments, home=tmp_path)


@pytest.fixture
def solving(tmp_path: Path) -> Path:
    """A profile whose model solves every task with two calls."""
    write_task(tmp_path / "tasks", "one")
    write_task(tmp_path / "tasks", "two")
    return write_profile(tmp_path / "solving", SOLVING_TURNS)


def test_runs_are_measured_and_reported(tmp_path: Path, solving: Path) -> None:
    other = write_profile(tmp_path / "other", TRUNCATED_TURNS)
    ended = run_compare(tmp_path, solving, other, "--runs", "2", "--jobs", "2")
    assert ended.status == 0, ended.err
    records = read_records(tmp_path / "out")
    assert len(records) == 8
    assert all(one.solved and one.status == "completed" for one in records)
    assert {(one.turns, one.tool_calls["run_command"]) for one in records} == {(3, 2)}
    by_profile = {name: [one for one in records if one.profile == name] for name in ("a", "b")}
    assert {one.truncated_outputs for one in by_profile["a"]} == {0}
    assert {one.truncated_outputs for one in by_profile["b"]} == {1}
    assert all(one.difference is None for one in records)  # the first requests are equal
    for one in records:
        assert_counts(one)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report
    assert "<html" in (tmp_path / "out" / "report.html").read_text()
    assert "tool calls" in ended.out

    again = run_compare(tmp_path, solving, other, "--runs", "2", "--jobs", "2")
    assert again.status == 0, again.err
    assert read_records(tmp_path / "out") == records


def assert_counts(one: RunRecord) -> None:
    assert one.prompt_tokens is not None
    assert one.new_tokens is not None
    assert one.cached_tokens is not None
    assert one.re_prefilled_tokens is not None
    assert 0 < one.new_tokens < one.prompt_tokens
    assert one.re_prefilled_tokens < 16 * one.turns  # incomplete cache blocks
    assert one.reasoning_tokens
    assert len(one.ttft_seconds) == one.turns


def test_first_difference_of_the_requests_is_stored(tmp_path: Path, solving: Path) -> None:
    other = tmp_path / "solving" / "limited.toml"
    other.write_text(f"{solving.read_text()}\nmax_output_chars = 5\n")
    ended = run_compare(tmp_path, solving, other)
    assert ended.status == 0, ended.err
    for one in read_records(tmp_path / "out"):
        if one.profile == "a":
            assert one.difference is None
            continue
        assert one.difference is not None
        assert (one.difference.request, one.difference.a) == (
            1,
            "some input\n\n(exit status 0)",
        )
        assert "characters truncated" in (one.difference.b or "")


def test_killed_experiment_is_continued(tmp_path: Path, solving: Path) -> None:
    slow = write_profile(tmp_path / "slow", [{**turn, "delay": 0.3} for turn in SOLVING_TURNS])
    command = [
        *(sys.executable, "-m", "dovetail", "compare", "--tasks", str(tmp_path / "tasks")),
        *("--a", str(solving), "--b", str(slow), "--out", str(tmp_path / "out"), "--runs", "2"),
    ]
    environment = clean_environment(tmp_path)
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        runs = tmp_path / "out" / "runs.jsonl"
        while process.poll() is None and not (runs.exists() and runs.read_bytes().count(b"\n")):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    before = read_records(tmp_path / "out")
    assert 1 <= len(before) < 8
    ended = run_compare(tmp_path, solving, slow, "--runs", "2")
    assert ended.status == 0, ended.err
    after = read_records(tmp_path / "out")
    assert len(after) == 8
    assert all(one in after for one in before)
    assert Counter(one.status for one in after) == {"completed": 8}


def test_interrupted_experiment_can_be_continued(tmp_path: Path, solving: Path) -> None:
    hanging = write_profile(tmp_path / "hanging", [{"text": "x", "hang": True}])
    command = [
        *(sys.executable, "-m", "dovetail", "compare", "--tasks", str(tmp_path / "tasks")),
        *("--a", str(solving), "--b", str(hanging), "--out", str(tmp_path / "out")),
    ]
    environment = clean_environment(tmp_path)
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        logs = tmp_path / "out" / "logs"
        while process.poll() is None and not list(logs.glob("*.0.b.log")):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command continues" in error
    assert "Traceback" not in error


def test_dying_endpoint_is_reported(tmp_path: Path, solving: Path) -> None:
    dying = write_profile(tmp_path / "dying", [SOLVING_TURNS[0], {"text": "x", "die": True}])
    ended = run_compare(tmp_path, solving, dying)
    assert ended.status == 3, ended.err
    assert "profile b" in ended.err
    assert "failed 3 times" in ended.err
    assert "Finished runs are kept" in ended.err
    assert "Traceback" not in ended.err
    failed = [one for one in read_records(tmp_path / "out") if one.status == "failed"]
    assert [one.profile for one in failed] == ["b"]


def test_endpoint_that_is_not_there_is_reported(tmp_path: Path, solving: Path) -> None:
    ended = dovetail(
        *("compare", "--tasks", tmp_path / "tasks", "--a", solving, "--b"),
        *("url=http://127.0.0.1:9,alias=x", "--out", tmp_path / "out"),
        home=tmp_path,
    )
    assert ended.status == 2
    assert "profile b: cannot reach a server at http://127.0.0.1:9" in ended.err


def test_check_that_crashes_after_a_run_is_reported(tmp_path: Path) -> None:
    crashing = f"import os\nif os.path.exists('result.txt'): raise ValueError('broken')\n{CHECK}"
    write_task(tmp_path / "tasks", "crashing", check=crashing)
    write_task(tmp_path / "tasks", "good")
    profile = write_profile(tmp_path / "profile", SOLVING_TURNS)
    ended = run_compare(tmp_path, profile, profile)
    assert ended.status == 1, ended.err
    assert "not measured: crashing, repetition 0, profile a: check.py of task" in ended.err
    assert "ValueError: broken" in ended.err
    found = Counter((one.task, one.status) for one in read_records(tmp_path / "out"))
    assert found == {("crashing", "failed"): 2, ("good", "completed"): 2}


def test_agent_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "endless", timeout_seconds=2)
    pids = tmp_path / "pids"
    sleeping = [{"text": call_text(f"echo done > result.txt; echo $$ >> {pids}; sleep 100")}]
    profile = write_profile(tmp_path / "profile", sleeping)
    ended = run_compare(tmp_path, profile, profile)
    assert ended.status == 0, ended.err
    commands = pids.read_text().split()
    assert len(commands) == 2
    assert not [pid for pid in commands if Path(f"/proc/{pid}/cwd").exists()]  # none runs on
    for one in read_records(tmp_path / "out"):
        assert one.solved  # the check decides
        assert one.tool_calls == {"run_command": 1}


def test_results_that_cannot_be_stored_abort_the_experiment(tmp_path: Path, solving: Path) -> None:
    (tmp_path / "out" / "logs" / "two.0.a.log").mkdir(parents=True)
    ended = run_compare(tmp_path, solving, solving)
    assert ended.status == 3, ended.err
    assert "a run could not be prepared or stored: [Errno 21] Is a directory" in ended.err
    assert "Finished runs are kept" in ended.err
    (tmp_path / "out" / "logs" / "two.0.a.log").rmdir()
    ended = run_compare(tmp_path, solving, solving)
    assert ended.status == 0, ended.err
    assert len(read_records(tmp_path / "out")) == 4


def test_folder_that_another_process_uses_is_refused(tmp_path: Path, solving: Path) -> None:
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = run_compare(tmp_path, solving, solving)
    assert ended.status == 2
    assert f"another process runs the experiment in {tmp_path / 'out'}" in ended.err


def test_other_plan_in_the_folder_is_refused(tmp_path: Path, solving: Path) -> None:
    assert run_compare(tmp_path, solving, solving, "--only", "one").status == 0
    ended = run_compare(tmp_path, solving, solving)
    assert ended.status == 2
    assert "contains an experiment with another plan: tasks was ('one',)" in ended.err


def test_missing_harness_is_reported(tmp_path: Path, solving: Path) -> None:
    ended = dovetail(
        *("compare", "--harness", "codex", "--a", solving, "--b", solving),
        home=tmp_path,
        environment={"PATH": os.devnull},
    )
    assert ended.status == 2
    assert "npm install -g @openai/codex" in ended.err


def test_arguments_are_checked(tmp_path: Path) -> None:
    listed = dovetail("compare", "--list", home=tmp_path)
    assert listed.status == 0
    assert "fix-age" in listed.out
    missing = dovetail("compare", home=tmp_path)
    assert (missing.status, "--a and --b are required" in missing.err) == (2, True)
    unknown = dovetail("compare", "--harness", "vi", "--a", "model=m", "--b", "model=m",
                       home=tmp_path)  # fmt: skip
    assert (unknown.status, "--harness must be one of" in unknown.err) == (2, True)
