"""Run tool calls in a scratch folder, with the result texts of the harnesses."""

import json
import os
import re
import resource
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kit import Result

from dovetail.eval.tools import ToolError, Workspace, check_call

COMMAND_TIMEOUT_SECONDS = 10
MAX_OUTPUT_CHARS = 4000
#: A model chooses the commands, so only these programs run. A shell of the harness has no limit.
ALLOWED_PROGRAMS = frozenset(
    (
        "awk", "cat", "cd", "cp", "cut", "date", "diff", "echo", "find", "grep", "head", "ls",
        "mkdir", "mv", "printf", "pwd", "python3", "rm", "sed", "sort", "tail", "test", "touch",
        "tr", "true", "uniq", "wc",
    )
)  # fmt: skip
_PROGRAM = re.compile(r"(?:^|[;&|]\s*)([A-Za-z0-9_./-]+)")
_FORBIDDEN = re.compile(r"\.\./|(?:^|\s)/|~|\brm\b.*\s-[a-z]*r|`|\$\(|subprocess|os\.system|shutil")


@dataclass(frozen=True)
class Executed:
    """An executed call. `well_formed`: a known tool with valid JSON that fits the schema."""

    result: Result
    well_formed: bool


class Executor(Protocol):
    """Runs the calls of one task."""

    def run(self, name: str, arguments: str) -> Executed: ...

    def files(self) -> dict[str, str]: ...


class BuiltInExecutor:
    """The tools of `dovetail eval`."""

    def __init__(self, root: Path, files: Mapping[str, str], records: Mapping[str, str]) -> None:
        self._workspace = Workspace(root, records)
        for path, content in files.items():
            self._workspace.write(path, content)

    def run(self, name: str, arguments: str) -> Executed:
        checked = check_call(name, arguments)
        if checked.tool is None:
            return Executed(Result(checked.problem, True), False)
        try:
            return Executed(Result(checked.tool.run(self._workspace)), True)
        except ToolError as error:
            return Executed(Result(str(error), True), True)

    def files(self) -> dict[str, str]:
        return {path: self._workspace.read(path) for path in self._workspace.list_files()}


class PiExecutor:
    """The tools of Pi, which shows `shown_root` as the working folder."""

    REQUIRED: Mapping[str, tuple[str, ...]] = {
        "read": ("path",),
        "bash": ("command",),
        "edit": ("path", "edits"),
        "write": ("path", "content"),
    }

    def __init__(self, root: Path, files: Mapping[str, str], shown_root: str) -> None:
        self._root = root
        self._shown = shown_root
        for path, content in files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)

    def run(self, name: str, arguments: str) -> Executed:
        if name not in self.REQUIRED:
            return Executed(Result(f"Tool {name} not found", True), False)
        try:
            given = json.loads(arguments)
        except ValueError:
            given = None
        if not self._is_valid(name, given):
            return Executed(Result(self._invalid_text(name, given), True), False)
        try:
            return Executed(getattr(self, f"_{name}")(given), True)
        except (OSError, UnicodeError) as error:
            return Executed(Result(str(error).replace(str(self._root), self._shown), True), True)

    def files(self) -> dict[str, str]:
        found = {}
        for path in sorted(self._root.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                name = path.relative_to(self._root).as_posix()
                found[name] = path.read_text(errors="replace")
        return found

    def _is_valid(self, name: str, given: Any) -> bool:
        if not isinstance(given, dict):
            return False
        required = self.REQUIRED[name]
        if not all(isinstance(given.get(key), str) for key in required if key != "edits"):
            return False
        if name != "edit":
            return True
        edits = given.get("edits")
        return isinstance(edits, list) and all(
            isinstance(edit, dict)
            and isinstance(edit.get("oldText"), str)
            and isinstance(edit.get("newText"), str)
            for edit in edits
        )

    def _invalid_text(self, name: str, given: Any) -> str:
        missing = [
            key for key in self.REQUIRED[name] if not isinstance(given, dict) or key not in given
        ]
        lines = "".join(f"  - {key}: must have required properties {key}\n" for key in missing)
        return (
            f'Validation failed for tool "{name}":\n{lines}\nReceived arguments:\n'
            f"{json.dumps(given, indent=2)}"
        )

    def _resolve(self, path: str) -> Path:
        path = path.replace(self._shown, str(self._root))
        target = (self._root / path).resolve()
        if not target.is_relative_to(self._root.resolve()):
            raise OSError(f"ENOENT: no such file or directory, access '{path}'")
        return target

    def _read(self, given: Mapping[str, Any]) -> Result:
        target = self._resolve(given["path"])
        if target.is_dir():
            return Result("EISDIR: illegal operation on a directory, read", True)
        if not target.exists():
            shown = f"{self._shown}/{given['path'].removeprefix('./')}"
            return Result(f"ENOENT: no such file or directory, access '{shown}'", True)
        return Result(target.read_text())

    def _write(self, given: Mapping[str, Any]) -> Result:
        target = self._resolve(given["path"])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(given["content"])
        size = len(given["content"].encode())
        return Result(f"Successfully wrote {size} bytes to {given['path']}")

    def _edit(self, given: Mapping[str, Any]) -> Result:
        path, edits = given["path"], given["edits"]
        target = self._resolve(path)
        if not target.is_file():
            return Result(f"Could not edit file: {path}. Error code: ENOENT.", True)
        text = target.read_text()
        for edit in edits:
            count = text.count(edit["oldText"]) if edit["oldText"] else 0
            if count == 0:
                return Result(
                    f"Could not find the exact text in {path}. The old text must match exactly "
                    "including all whitespace and newlines.",
                    True,
                )
            if count > 1:
                return Result(
                    f"Found {count} occurrences of the text in {path}. The text must be unique. "
                    "Please provide more context to make it unique.",
                    True,
                )
            text = text.replace(edit["oldText"], edit["newText"])
        target.write_text(text)
        return Result(f"Successfully replaced {len(edits)} block(s) in {path}.")

    def _bash(self, given: Mapping[str, Any]) -> Result:
        command = given["command"].replace(self._shown, str(self._root))
        problem = find_forbidden(command)
        if problem:
            return Result(
                (
                    f"/bin/bash: line 1: {problem}: command not found\n\n\nCommand exited with "
                    f"code 127"
                ),
                True,
            )
        try:
            ran = subprocess.run(
                ["/bin/bash", "-c", command],
                cwd=self._root,
                env={
                    "PATH": os.environ["PATH"],
                    "HOME": str(self._root),
                    "LANG": "C.UTF-8",
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=COMMAND_TIMEOUT_SECONDS,
                preexec_fn=_limit_resources,
            )
        except subprocess.TimeoutExpired:
            return Result("Command timed out", True)
        text = ran.stdout.decode(errors="replace").replace(str(self._root), self._shown)
        text = text[-MAX_OUTPUT_CHARS:] or "(no output)"
        if ran.returncode:
            return Result(f"{text}\n\nCommand exited with code {ran.returncode}", True)
        return Result(text)


def find_forbidden(command: str) -> str | None:
    """Return the program of a command that may not run here, or None."""
    # The program text of python3 -c and quoted patterns are not names of programs.
    outside = re.sub(r"\"[^\"]*\"|'[^']*'", "", command)
    for program in _PROGRAM.findall(outside):
        if program not in ALLOWED_PROGRAMS:
            return str(program)
    return command.split()[0] if _FORBIDDEN.search(command.replace("2>/dev/null", "")) else None


def _limit_resources() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
