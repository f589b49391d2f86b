"""Read task folders, and check the result of a run.

A task is a folder with `task.toml` (title, instructions), `workspace/` (the files that the agent
works on) and `check.py`, which is run in the workspace after the agent: its exit status is 0 if the
task is solved, and 1 with the reason on its standard output if not.
"""

import asyncio
import fnmatch
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

from dovetail.compare.task_checks import CheckResult, run_check

DEFAULT_TASKS = Path(__file__).parent / "tasks"
DEFAULT_TIMEOUT_SECONDS = 600.0
CHECK_TIMEOUT_SECONDS = 60.0
_MAX_PROBLEM_CHARS = 300
_CONCURRENT_CHECKS = 2


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

    async def check(
        self, workspace: Path, max_seconds: float = CHECK_TIMEOUT_SECONDS
    ) -> str | None:
        """Return why the task is not solved, or None. Raises `CheckError`."""
        result = await run_check(self.folder / "check.py", workspace, max_seconds)
        self._require_result(result)
        if result.status is None:
            return _describe_timeout(max_seconds)
        return result.output[:_MAX_PROBLEM_CHARS] if result.status else None

    async def verify_check(self, max_seconds: float = CHECK_TIMEOUT_SECONDS) -> None:
        """Require that the check reports the unchanged workspace as unsolved."""
        with tempfile.TemporaryDirectory(prefix="dovetail-compare-") as scratch:
            workspace = Path(scratch) / "work"
            try:
                self.copy_workspace(workspace)
            except OSError as error:
                raise CompareError(
                    f"cannot copy the workspace of task {self.id!r}: {error}"
                ) from error
            result = await run_check(self.folder / "check.py", workspace, max_seconds)
        self._require_result(result)
        if result.status is None:
            raise CheckError(
                f"{_describe_timeout(max_seconds)} in the unchanged workspace of task {self.id!r}"
            )
        if result.status == 0:
            raise CheckError(
                f"check.py of task {self.id!r} reports the unchanged workspace as solved"
            )

    def _require_result(self, result: CheckResult) -> None:
        if result.failure is not None:
            failure = result.failure[:_MAX_PROBLEM_CHARS]
            raise CheckError(f"check.py of task {self.id!r} {failure}")

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
    if (folder / "task.toml").is_file():
        raise CompareError(
            f"{folder} is a task: pass the folder that contains it, and select it with --only"
        )
    if not folders:
        raise CompareError(
            f"there are no tasks in {folder}: a task is a folder with task.toml, check.py and "
            "workspace/"
        )
    for pattern in patterns:
        if not fnmatch.filter((one.name for one in folders), pattern):
            names = ", ".join(one.name for one in folders)
            raise CompareError(f"--only {pattern} matches no task; the tasks are {names}")
    selected = [one for one in folders if _matches(one.name, patterns)]
    return tuple(map(_load_task, selected))


def verify_checks(tasks: Iterable[CodingTask]) -> None:
    """Check that every task is unsolved at first. Raises CompareError for a defective check."""
    asyncio.run(_verify_checks(tasks))


async def _verify_checks(tasks: Iterable[CodingTask]) -> None:
    limit = asyncio.Semaphore(_CONCURRENT_CHECKS)

    async def verify(task: CodingTask) -> None:
        async with limit:
            await task.verify_check()

    await asyncio.gather(*map(verify, tasks))


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


def _describe_timeout(seconds: float) -> str:
    return f"check.py did not finish within {seconds:g} seconds"
