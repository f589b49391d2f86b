"""Task folders: what is read, and messages for folders and checks that are defective."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from compare_tasks import write_task

from dovetail.compare.task_set import CheckError, CompareError, load_tasks, verify_checks


def test_tasks_are_read_in_order_and_selected(tmp_path: Path) -> None:
    for name in ("two", "one", "three"):
        write_task(tmp_path, name, timeout_seconds=5)
    assert [task.id for task in load_tasks(tmp_path)] == ["one", "three", "two"]
    assert [task.id for task in load_tasks(tmp_path, ["t*"])] == ["three", "two"]
    with pytest.raises(
        CompareError, match=r"--only x\* matches no task; the tasks are one, three, "
    ):
        load_tasks(tmp_path, ["t*", "x*"])


def test_folder_of_one_task_is_recognized(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "one")
    with pytest.raises(CompareError, match="one is a task: pass the folder that contains it"):
        load_tasks(folder)


def test_check_distinguishes_solved_and_unsolved(tmp_path: Path) -> None:
    write_task(tmp_path, "one")
    (task,) = load_tasks(tmp_path)
    task.copy_workspace(tmp_path / "work")
    assert asyncio.run(task.check(tmp_path / "work")) == "result.txt is 'missing'"
    (tmp_path / "work" / "result.txt").write_text("done\n")
    assert asyncio.run(task.check(tmp_path / "work")) is None


def test_folder_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task(tmp_path / "tasks", "one")
    monkeypatch.chdir(tmp_path)
    verify_checks(load_tasks(Path("tasks")))


@pytest.mark.parametrize("missing", ["task.toml", "check.py", "workspace"])
def test_missing_part_is_reported(tmp_path: Path, missing: str) -> None:
    task = write_task(tmp_path, "one")
    (task / missing).rename(tmp_path / f"moved-{missing}.bak")
    (tmp_path / f"moved-{missing}.bak").rename(tmp_path.parent / f"{tmp_path.name}-{missing}")
    with pytest.raises(CompareError, match=f"has no {missing}"):
        load_tasks(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = ", "is not valid TOML"),
        ('title = "x"', "missing required field `instructions`"),
        ('title = "x"\ninstructions = " "', "`instructions` must not be empty"),
        ('title = "x"\ninstructions = "y"\nlevel = 3', "unknown field `level`"),
        ('title = "x"\ninstructions = "y"\ntimeout_seconds = 0', "must be > 0, got 0"),
        ('title = "x"\ninstructions = 3', "Expected `str`, got `int`"),
    ],
)
def test_defective_definition_is_reported(tmp_path: Path, text: str, message: str) -> None:
    path = write_task(tmp_path, "one") / "task.toml"
    path.write_text(text)
    with pytest.raises(CompareError) as caught:
        load_tasks(tmp_path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_folders_without_tasks_are_reported(tmp_path: Path) -> None:
    with pytest.raises(CompareError, match="there are no tasks in"):
        load_tasks(tmp_path)
    with pytest.raises(CompareError, match="cannot read the task folder"):
        load_tasks(tmp_path / "none")


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("raise ValueError('broken')", "crashed: ValueError: broken"),
        ("print('start'); raise ValueError('broken')", "crashed: ValueError: broken"),
        ("def", "crashed: SyntaxError: invalid syntax"),
        ("import sys; sys.exit(1)", "exited with status 1 without a reason on its standard output"),
        ("import sys; sys.exit('wrong')", "standard output: wrong"),
        ("while True: print('x' * 65536)", "printed more than 16 MiB"),
        ("import sys; sys.exit(3)", "exited with status 3, expected 0 or 1"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by signal 9"),
        ("print('solved')", "reports the unchanged workspace as solved"),
    ],
)
def test_defective_check_is_reported_before_the_runs(
    tmp_path: Path, check: str, message: str
) -> None:
    write_task(tmp_path, "one")
    write_task(tmp_path, "two", check=check)
    with pytest.raises(CompareError) as caught:
        verify_checks(load_tasks(tmp_path))
    assert "'two'" in str(caught.value)
    assert message in str(caught.value)


def test_endless_check_is_not_solved(tmp_path: Path) -> None:
    """The agent's own code may be what does not end."""
    write_task(tmp_path, "one", check="while True: pass")
    (task,) = load_tasks(tmp_path)
    found = asyncio.run(task.check(task.folder / "workspace", max_seconds=0.5))
    assert found == "check.py did not finish within 0.5 seconds"


def test_endless_check_of_the_unchanged_workspace_is_defective(tmp_path: Path) -> None:
    write_task(tmp_path, "one", check="while True: pass")
    (task,) = load_tasks(tmp_path)
    message = r"did not finish within 0\.5 seconds in the unchanged workspace of task 'one'"
    with pytest.raises(CheckError, match=message):
        asyncio.run(task.verify_check(max_seconds=0.5))


@pytest.mark.parametrize("ends", [True, False], ids=["check ends", "check hangs"])
def test_processes_of_a_check_end_with_it(tmp_path: Path, ends: bool) -> None:
    """A program of the agent that never ends would slow down all later runs."""
    check = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        "open('pid', 'w').write(str(child.pid))\n"
        f"print('no'); time.sleep({0 if ends else 100}); sys.exit(1)"
    )
    folder = write_task(tmp_path, "one", check=check)
    (task,) = load_tasks(tmp_path)
    started = time.monotonic()
    found = asyncio.run(task.check(folder / "workspace", max_seconds=30 if ends else 1))
    assert found == ("no" if ends else "check.py did not finish within 1 seconds")
    assert time.monotonic() - started < 20
    assert not is_running(int((folder / "workspace" / "pid").read_text()))


def is_running(pid: int) -> bool:
    """Return whether a process runs. One that has ended may still be a zombie."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
            if ") Z " in Path(f"/proc/{pid}/stat").read_text():
                return False
        except (OSError, FileNotFoundError):
            return False
        time.sleep(0.02)
    return True


def test_output_of_a_check_is_shown_without_control_characters(tmp_path: Path) -> None:
    check = "import os, sys; os.write(1, b'\\x1b[2Jwrong\\0 \\xff\\n'); sys.exit(1)"
    write_task(tmp_path, "one", check=check)
    (task,) = load_tasks(tmp_path)
    found = asyncio.run(task.check(task.folder / "workspace"))
    assert found == "\ufffd[2Jwrong\ufffd \ufffd"


def test_workspace_that_cannot_be_copied_is_reported(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "one")
    (folder / "workspace" / "link").symlink_to("nowhere")
    with pytest.raises(CompareError, match="cannot copy the workspace of task 'one'"):
        verify_checks(load_tasks(tmp_path))


def test_crash_is_not_a_result(tmp_path: Path) -> None:
    write_task(tmp_path, "one", check="1 / 0")
    (task,) = load_tasks(tmp_path)
    with pytest.raises(CheckError, match="ZeroDivisionError"):
        asyncio.run(task.check(task.folder / "workspace"))


def test_digest_changes_with_any_file(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "one")
    (task,) = load_tasks(tmp_path)
    before = task.digest()
    assert task.digest() == before
    (folder / "workspace" / "input.txt").write_text("another")
    assert task.digest() != before
