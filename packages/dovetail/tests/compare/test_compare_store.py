"""The folder of an experiment: nothing finished is lost, and other plans are refused."""

import os
from pathlib import Path

import msgspec
import pytest

from dovetail.compare.differences import SessionRequest
from dovetail.compare.records import Experiment, ProfileName, RequestDifference, RunRecord
from dovetail.compare.store import ExperimentStore, PlanFile, read_plan, read_records
from dovetail.compare.task_set import CompareError

EXPERIMENT = Experiment("builtin", "1", ("t", "u"), 1, 0, {"a": {"model": "m"}, "b": {"url": "x"}})
PLAN = PlanFile(EXPERIMENT, {"t": "1", "u": "2"})


def record(
    task: str = "t", profile: ProfileName = "a", position: int = 0, turns: int = 1
) -> RunRecord:
    return RunRecord(task, 0, profile, 7, position, "completed", turns=turns)


def test_finished_runs_are_read_again(tmp_path: Path) -> None:
    store = ExperimentStore(tmp_path / "out")
    assert store.open(PLAN) == {}
    store.append(record())
    store.append(record("u", "b", 1))
    store.close()
    again = ExperimentStore(tmp_path / "out")
    assert list(again.open(PLAN)) == [("t", 0, "a"), ("u", 0, "b")]
    again.close()


def test_last_line_of_a_run_is_valid(tmp_path: Path) -> None:
    store = ExperimentStore(tmp_path)
    store.open(PLAN)
    difference = RequestDifference(0, "input[0]", "x", None)
    store.append(record())
    store.append(msgspec.structs.replace(record(), difference=difference))
    store.close()
    (found,) = read_records(tmp_path)
    assert found.difference == difference


def test_incomplete_last_line_is_removed(tmp_path: Path) -> None:
    store = ExperimentStore(tmp_path)
    store.open(PLAN)
    store.append(record())
    store.close()
    with (tmp_path / "runs.jsonl").open("ab") as file:
        file.write(b'{"task": "u", "repet')
    assert len(read_records(tmp_path)) == 1
    store.open(PLAN)
    store.append(record("u", "a", 2))
    store.close()
    assert [one.task for one in read_records(tmp_path)] == ["t", "u"]


def test_complete_last_record_without_a_line_break_is_retained(tmp_path: Path) -> None:
    store = ExperimentStore(tmp_path)
    store.open(PLAN)
    store.append(record())
    store.close()
    file = tmp_path / "runs.jsonl"
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    assert list(store.open(PLAN)) == [("t", 0, "a")]
    store.append(record("u", "a", 2))
    store.close()
    assert [one.task for one in read_records(tmp_path)] == ["t", "u"]


def test_plan_without_runs_is_replaced(tmp_path: Path) -> None:
    store = ExperimentStore(tmp_path)
    store.open(PLAN)
    store.close()
    other = PlanFile(msgspec.structs.replace(EXPERIMENT, seed=1), PLAN.task_digests)
    assert store.open(other) == {}
    store.close()
    assert read_plan(tmp_path) == other


def test_damaged_line_is_reported(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_bytes(b"{}\n")
    with pytest.raises(CompareError, match=r"runs\.jsonl, line 1"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runs": 2}, "runs was 1, now 2"),
        ({"seed": 1}, "seed was 0, now 1"),
        ({"tasks": ("t",)}, "tasks was"),
        ({"harness": "codex"}, "harness was builtin, now codex"),
        ({"profiles": {"a": {"model": "m"}, "b": {"url": "y"}}}, "profile b was {'url': 'x'}"),
    ],
)
def test_other_plan_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    store = ExperimentStore(tmp_path)
    store.open(PLAN)
    store.append(record())
    store.close()
    other = msgspec.structs.replace(EXPERIMENT, **changes)
    with pytest.raises(CompareError) as caught:
        ExperimentStore(tmp_path).open(PlanFile(other, PLAN.task_digests))
    assert message in str(caught.value)
    assert "--out" in str(caught.value)


def test_changed_task_is_refused(tmp_path: Path) -> None:
    store = ExperimentStore(tmp_path)
    store.open(PLAN)
    store.append(record())
    store.close()
    with pytest.raises(CompareError, match="other versions of the tasks u"):
        ExperimentStore(tmp_path).open(PlanFile(EXPERIMENT, {"t": "1", "u": "3"}))


def test_folder_is_used_by_one_process(tmp_path: Path) -> None:
    store = ExperimentStore(tmp_path)
    store.open(PLAN)
    with pytest.raises(CompareError, match="another process"):
        ExperimentStore(tmp_path).open(PLAN)
    store.close()


def test_requests_are_stored(tmp_path: Path) -> None:
    store = ExperimentStore(tmp_path)
    store.open(PLAN)
    requests = [SessionRequest({"input": "x"}, [["text", "y"]])]
    store.write_requests("t.0.a", requests)
    assert store.read_requests("t.0.a") == requests
    assert store.read_requests("t.0.b") is None
    store.close()


def test_record_that_could_be_written_only_in_part_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ExperimentStore(tmp_path)
    store.open(PLAN)
    store.append(record())
    write = os.write

    def write_part(file: int, data: bytes) -> int:
        write(file, data[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write_part)
    with pytest.raises(OSError, match="No space left"):
        store.append(record("u", "a", 2))
    monkeypatch.setattr(os, "write", write)
    store.append(record("u", "b", 3))
    store.close()
    assert [(one.task, one.profile) for one in read_records(tmp_path)] == [("t", "a"), ("u", "b")]


def test_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompareError, match=r"cannot write to --out .*file: File exists"):
        ExperimentStore(tmp_path / "file").open(PLAN)
