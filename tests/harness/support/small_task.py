"""A task of a few turns for any coding agent: list, write, read, edit, and a second question.

The model reasons and calls twice in its first turn, calls two tools at once in its second, and
writes non-ASCII text. Clients differ only in the names of their tools.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client_sandbox import ClientResult
from prefix_exactness import Row, assert_exact
from server_setup import GPT_OSS, KIMI, Family, ServerSetup, call, text, think, turns

from dovetail_model import OutputBlock, ToolCallBlock

TASK = "Greet the world in two files."
QUESTION = "And what does the second file say?"
DONE = "Two files, grüße ✓"
QUESTION_REPLY = "It says: héllo Welt 🌍"
FILES = {"greeting.txt": "grüße\n", "world.txt": "héllo\nWelt 🌍\n"}

#: These templates drop reasoning before a final message when the user sends another prompt, so the
#: prompt differs from the first output on. The prompt before it is preserved.
_DROPS_REASONING = (KIMI, GPT_OSS)
#: Its turns end after one call.
_ONE_CALL = (GPT_OSS,)


@dataclass(frozen=True)
class Tools:
    """How a client's tools are called: with a command, a path and more texts."""

    shell: Callable[[str], ToolCallBlock]
    write: Callable[[str, str], ToolCallBlock]
    read: Callable[[str], ToolCallBlock]
    edit: Callable[[str, str, str], ToolCallBlock]


def pi_tools(shell: str) -> Tools:
    """Return Pi's tools, which are also OpenClaw's except for the name of the shell."""
    return Tools(
        shell=lambda command: call(shell, command=command),
        write=lambda path, content: call("write", path=path, content=content),
        read=lambda path: call("read", path=path),
        edit=lambda path, old, new: call(
            "edit", path=path, edits=[{"oldText": old, "newText": new}]
        ),
    )


def small_task(family: Family, tools: Tools) -> list[dict[str, Any]]:
    """Return the model's turns: those of the task, then those of the question."""
    outputs: Sequence[Sequence[OutputBlock]] = [
        [
            think("I look at the folder first."),
            tools.shell("ls -a"),
            think("Größe doesn't matter: I greet now."),
            tools.shell("echo grüße > greeting.txt"),
        ],
        [
            think("The world comes next."),
            text("Now the world."),
            tools.write("world.txt", "héllo\nwörld 🌍\n"),
            tools.read("greeting.txt"),
        ],
        [think("In German, please."), tools.edit("world.txt", "wörld", "Welt")],
        [think("All is there."), text(DONE)],
        [think("I look it up."), tools.shell("cat world.txt")],
        [text(QUESTION_REPLY)],
    ]
    if family in _ONE_CALL:
        outputs = [part for blocks in outputs for part in _one_call_each(blocks)]
    return turns(family, *outputs)


def assert_ended_well(result: ClientResult, reply: str) -> None:
    """Check that the client ended successfully and printed the model's last text."""
    assert result.status == 0, f"{result.out[-3000:]}\n{result.err[-3000:]}"
    assert reply in result.out, f"{result.out[-3000:]}\n{result.err[-3000:]}"


def read_files(folder: Path) -> Mapping[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.txt")}


def assert_task_exact(setup: ServerSetup, *, titles: int = 0) -> list[Row]:
    """Check that task and question continue exactly, except for what the template drops."""
    generations, family = setup.generations, setup.family
    assert len(generations) == titles + len(small_task(family, pi_tools("any")))
    found = assert_exact(generations, new=titles + 1, again=family in _DROPS_REASONING)
    new = [at for at, row in enumerate(found) if row.kind == "new"]
    begun = max(new, key=lambda at: found[at].prompt)  # a title's prompt is shorter
    assert all(row.source == begun for row in found if row.kind == "again")
    return found


def _one_call_each(blocks: Sequence[OutputBlock]) -> list[list[OutputBlock]]:
    """Split the blocks such that each call ends a turn."""
    parts: list[list[OutputBlock]] = [[]]
    for block in blocks:
        if parts[-1] and isinstance(parts[-1][-1], ToolCallBlock):
            parts.append([])
        parts[-1].append(block)
    return parts
