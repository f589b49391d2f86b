"""Read task folders, and check the result of a run.

A task is a folder with `task.toml` (title, instructions), `workspace/` (the files that the agent
works on) and `check.py`, which is run in the workspace after the agent: its exit status is 0 if the
task is solved, and 1 with the reason on its standard output if not.
"""

import fnmatch
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

DEFAULT_TASKS = Path(__file__).parent / "tasks"
DEFAULT_TIMEOUT_SECONDS = 600.0
CHECK_TIMEOUT_SECONDS = 60.0
_MAX_PROBLEM_CHARS = 300


class CompareError(Exception):
    """Raised if an experiment cannot be run; the message is for the user."""


class CheckError(CompareError):
    """Raised if the check of a task fails itself, so that the result is unknown."""


class _TaskFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of task.toml."""

    title: str
    instructions: str
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class CodingTask:
    """A task. `timeout_seconds` limits the run of the agent."""

    id: str
    folder: Path
    title: str
    instructions: str
    timeout_seconds: float

    def copy_workspace(self, folder: Path) -> None:
        """Copy the files to work on to a folder that does not exist yet."""
        shutil.copytree(self.folder / "workspace", folder)

    def check(self, workspace: Path, timeout: float = CHECK_TIMEOUT_SECONDS) -> str | None:
        """Return why the task is not solved, or None. Raises `CheckError`."""
        command = [sys.executable, "-I", str(self.folder / "check.py")]
        try:
            done = subprocess.run(
                command,
                cwd=workspace,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"check.py did not finish within {timeout:g} seconds"
        reason = done.stdout.strip()
        if done.returncode == 0:
            return None
        if done.returncode == 1 and reason:
            return reason[:_MAX_PROBLEM_CHARS]
        raise CheckError(f"check.py of task {self.id!r} {_describe_crash(done)}")

    def digest(self) -> str:
        """Return a hash of all files, to recognize a task that was changed."""
        digest = sha256()
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(path.relative_to(self.folder).as_posix().encode() + b"\0")
                digest.update(path.read_bytes() + b"\0")
        return digest.hexdigest()[:16]


def load_tasks(folder: Path, patterns: Sequence[str] = ()) -> tuple[CodingTask, ...]:
    """Read the tasks below a folder whose names match one of the patterns. Raises CompareError."""
    try:
        # Checks run in the workspace, so their paths must be absolute.
        folders = sorted(one for one in folder.resolve().iterdir() if _may_be_task(one))
    except OSError as error:
        raise CompareError(f"cannot read the task folder {folder}: {error.strerror}") from error
    if not folders:
        raise CompareError(
            f"there are no tasks in {folder}: a task is a folder with task.toml, check.py and "
            "workspace/"
        )
    selected = [one for one in folders if _matches(one.name, patterns)]
    if not selected:
        names = ", ".join(one.name for one in folders)
        raise CompareError(f"--only matches no task; the tasks are {names}")
    return tuple(map(_load_task, selected))


def verify_checks(tasks: Iterable[CodingTask]) -> None:
    """Check that every task is unsolved at first. Raises CompareError for a defective check."""
    with ThreadPoolExecutor(2) as executor:
        list(executor.map(_verify_check, tasks))


def _verify_check(task: CodingTask) -> None:
    with tempfile.TemporaryDirectory(prefix="dovetail-compare-") as scratch:
        workspace = Path(scratch) / "work"
        task.copy_workspace(workspace)
        if task.check(workspace) is None:
            raise CompareError(
                f"check.py of task {task.id!r} reports the unchanged workspace as solved"
            )


def _may_be_task(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith((".", "__"))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _load_task(folder: Path) -> CodingTask:
    for name, is_there in (
        ("task.toml", Path.is_file),
        ("check.py", Path.is_file),
        ("workspace", Path.is_dir),
    ):
        if not is_there(folder / name):
            raise CompareError(f"task folder {folder} has no {name}")
    path = folder / "task.toml"
    try:
        found = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _TaskFile)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CompareError(f"{path} is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise CompareError(f"{path}: {error}") from error
    if not found.instructions.strip():
        raise CompareError(f"{path}: `instructions` must not be empty")
    if found.timeout_seconds <= 0:
        raise CompareError(f"{path}: `timeout_seconds` must be > 0, got {found.timeout_seconds:g}")
    return CodingTask(
        folder.name, folder, found.title, found.instructions.strip(), found.timeout_seconds
    )


def _describe_crash(done: "subprocess.CompletedProcess[str]") -> str:
    last_line = (done.stderr.strip().splitlines() or ["no message"])[-1][:_MAX_PROBLEM_CHARS]
    if done.returncode < 0:
        return f"was ended by signal {-done.returncode}: {last_line}"
    if done.returncode == 1:
        return f"crashed: {last_line}"
    return f"exited with status {done.returncode}, expected 0 or 1: {last_line}"
