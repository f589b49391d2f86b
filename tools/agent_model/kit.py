"""The tool sets of the harnesses, and steps of a scripted solution.

A task is solved once, in terms of a `Kit`; the kit of a harness turns each action into its calls.
"""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Call:
    """One tool call."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One model turn: text and calls. The text of a turn without calls is the final text.

    `learn`: whether the turn is trained on. Mistakes are not; the reaction to them is.
    """

    text: str
    calls: tuple[Call, ...] = ()
    learn: bool = True


@dataclass(frozen=True)
class Result:
    """The result of a call."""

    text: str
    failed: bool = False


Results = list[Result]
Solution = Generator[Step, Results, None]


class Folder(Protocol):
    """The files that a check reads."""

    def read(self, path: str) -> str: ...


#: Returns the problem with the files or the final text, or None if both are correct.
Check = Callable[[Mapping[str, str], str], str | None]


@dataclass(frozen=True)
class Task:
    """One task: a prompt, the files at the start, a solution and a check."""

    kind: str
    prompt: str
    solve: Callable[["Kit"], Solution]
    check: Check
    files: Mapping[str, str] = field(default_factory=dict)
    records: Mapping[str, str] = field(default_factory=dict)


class Kit:
    """The calls of a harness."""

    name = ""
    has_shell = False

    def list(self) -> Call:
        raise NotImplementedError

    def read(self, path: str) -> Call:
        raise NotImplementedError

    def write(self, path: str, content: str) -> Call:
        raise NotImplementedError

    def edit(self, path: str, old: str, new: str) -> Call:
        raise NotImplementedError

    def search(self, text: str) -> Call:
        raise NotImplementedError

    def add(self, numbers: Sequence[int]) -> Call:
        raise NotImplementedError

    def run(self, command: str) -> Call:
        raise NotImplementedError


class BuiltInKit(Kit):
    """The tools of `dovetail eval`."""

    name = "builtin"

    def list(self) -> Call:
        return Call("list_files", {})

    def read(self, path: str) -> Call:
        return Call("read_file", {"path": path})

    def write(self, path: str, content: str) -> Call:
        return Call("write_file", {"path": path, "content": content})

    def edit(self, path: str, old: str, new: str) -> Call:
        return Call("edit_file", {"path": path, "old_text": old, "new_text": new})

    def search(self, text: str) -> Call:
        return Call("find_text", {"text": text})

    def add(self, numbers: Sequence[int]) -> Call:
        return Call("calculate", {"operation": "add", "numbers": [*numbers]})

    def look_up(self, key: str) -> Call:
        return Call("look_up", {"key": key})


class PiKit(Kit):
    """The tools of Pi: read, bash, edit and write."""

    name = "pi"
    has_shell = True

    def list(self) -> Call:
        return self.run("find . -type f")

    def read(self, path: str) -> Call:
        return Call("read", {"path": path})

    def write(self, path: str, content: str) -> Call:
        return Call("write", {"path": path, "content": content})

    def edit(self, path: str, old: str, new: str) -> Call:
        return Call("edit", {"path": path, "edits": [{"oldText": old, "newText": new}]})

    def search(self, text: str) -> Call:
        return self.run(f"grep -rn {json.dumps(text)} .")

    def add(self, numbers: Sequence[int]) -> Call:
        total = " + ".join(map(str, numbers))
        return self.run(f'python3 -c "print({total})"')

    def run(self, command: str) -> Call:
        return Call("bash", {"command": command})


KITS: Mapping[str, Kit] = {kit.name: kit for kit in (BuiltInKit(), PiKit())}
