"""The task set of `dovetail compare`: every check fails before the solution and passes after it."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import dovetail

TASKS = Path(dovetail.__file__).parent / "compare" / "tasks"
TASK_IDS = sorted(path.name for path in TASKS.iterdir() if (path / "task.toml").is_file())
MIN_TASKS = 32
TASK_KEYS = {"title", "instructions", "timeout_seconds", "tags"}


def test_the_set_is_large_and_varied() -> None:
    assert len(TASK_IDS) >= MIN_TASKS
    definitions = [_read_definition(task) for task in TASK_IDS]
    titles = [definition["title"] for definition in definitions]
    assert len(set(titles)) == len(titles)
    tags = {tag for definition in definitions for tag in definition["tags"]}
    assert {"bug-fix", "refactoring", "data", "config", "multi-file", "search"} <= tags
    long_output = [one for one in definitions if "long-output" in one["tags"]]
    assert len(long_output) >= 4


@pytest.mark.parametrize("task", TASK_IDS)
def test_a_definition_has_only_known_keys_of_the_right_types(task: str) -> None:
    definition = _read_definition(task)
    assert set(definition) <= TASK_KEYS
    assert definition["title"].strip()
    assert definition["instructions"].strip()
    assert definition.get("timeout_seconds", 1) > 0
    assert all(isinstance(tag, str) for tag in definition["tags"])


@pytest.mark.parametrize("task", TASK_IDS)
def test_a_check_fails_on_the_workspace_and_passes_with_the_solution(
    task: str, tmp_path: Path
) -> None:
    before = _run_check(task, _copy_workspace(task, tmp_path))
    assert before.returncode == 1, before.stdout + before.stderr
    assert before.stdout.strip()  # the reason
    assert not before.stderr
    shutil.copytree(TASKS / task / "solution", tmp_path / "workspace", dirs_exist_ok=True)
    after = _run_check(task, tmp_path / "workspace")
    assert after.returncode == 0, after.stdout + after.stderr


def test_an_exit_in_the_code_of_the_workspace_does_not_pass(tmp_path: Path) -> None:
    workspace = _copy_workspace("fix-age", tmp_path)
    (workspace / "age.py").write_text("import sys\nsys.exit(0)\n", "utf-8")
    result = _run_check("fix-age", workspace)
    assert (result.returncode, result.stdout) == (1, "SystemExit: 0\n")


def test_no_check_reads_the_tests_of_the_workspace() -> None:
    for task in TASK_IDS:
        source = (TASKS / task / "check.py").read_text("utf-8")
        tests = [path for path in (TASKS / task / "workspace").rglob("*.py") if "test" in path.name]
        assert not [path for path in tests if path.stem in source.split()], task


def _read_definition(task: str) -> dict[str, Any]:
    return tomllib.loads((TASKS / task / "task.toml").read_text("utf-8"))


def _copy_workspace(task: str, folder: Path) -> Path:
    return shutil.copytree(TASKS / task / "workspace", folder / "workspace")


def _run_check(task: str, workspace: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(TASKS / task / "check.py")]
    return subprocess.run(command, cwd=workspace, capture_output=True, text=True, timeout=60)
