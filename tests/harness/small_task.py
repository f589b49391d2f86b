"""A task of a few turns that any coding agent can do: look, write, read, edit, and be asked again.

The model thinks, calls, thinks and calls again in its first turn, calls two tools at once in its
second, and writes more than ASCII. Clients name their tools differently, which is all that differs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exactness import Row, was_exact
from sandbox import Ran
from stage import GPT_OSS, KIMI, Family, Stage, call, say, think, turns

from dovetail_model import OutputBlock, ToolCallBlock

TASK = "Greet the world in two files."
QUESTION = "And what does the second file say?"
DONE = "Two files, grüße ✓"
ANSWER = "It says: héllo Welt 🌍"
FILES = {"greeting.txt": "grüße\n", "world.txt": "héllo\nWelt 🌍\n"}

#: These templates drop what was thought before a final answer as soon as the user speaks again, so
#: the prompt is rendered anew from the first answer on. The prompt before that is kept whole.
_FORGETFUL = (KIMI, GPT_OSS)
#: Its turns end with a call.
_ONE_CALL = (GPT_OSS,)


@dataclass(frozen=True)
class Tools:
    """How a client's tools are called: with a command, a path and more texts."""

    shell: Callable[[str], ToolCallBlock]
    write: Callable[[str, str], ToolCallBlock]
    read: Callable[[str], ToolCallBlock]
    edit: Callable[[str, str, str], ToolCallBlock]


def pi_tools(shell: str) -> Tools:
    """Pi's, which are OpenClaw's too, but for the name of the shell."""
    return Tools(
        shell=lambda command: call(shell, command=command),
        write=lambda path, content: call("write", path=path, content=content),
        read=lambda path: call("read", path=path),
        edit=lambda path, old, new: call(
            "edit", path=path, edits=[{"oldText": old, "newText": new}]
        ),
    )


def small_task(family: Family, tools: Tools) -> list[dict[str, Any]]:
    """The model's turns: those of the task, then those of the question."""
    said: Sequence[Sequence[OutputBlock]] = [
        [
            think("I look at the folder first."),
            tools.shell("ls -a"),
            think("Größe doesn't matter: I greet now."),
            tools.shell("echo grüße > greeting.txt"),
        ],
        [
            think("The world comes next."),
            say("Now the world."),
            tools.write("world.txt", "héllo\nwörld 🌍\n"),
            tools.read("greeting.txt"),
        ],
        [think("In German, please."), tools.edit("world.txt", "wörld", "Welt")],
        [think("All is there."), say(DONE)],
        [think("I look it up."), tools.shell("cat world.txt")],
        [say(ANSWER)],
    ]
    if family in _ONE_CALL:
        said = [part for blocks in said for part in _one_call_each(blocks)]
    return turns(family, *said)


def ended_well(ran: Ran, answer: str) -> None:
    """The client has said the model's last words, and has nothing to complain about."""
    assert ran.status == 0, f"{ran.out[-3000:]}\n{ran.err[-3000:]}"
    assert answer in ran.out, f"{ran.out[-3000:]}\n{ran.err[-3000:]}"


def files_of(folder: Path) -> Mapping[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.txt")}


def task_was_exact(where: Stage, *, titles: int = 0) -> list[Row]:
    """Task and question went on exactly, but for what the model's own template forgets."""
    heard, family = where.heard, where.family
    assert len(heard) == titles + len(small_task(family, pi_tools("any")))
    found = was_exact(heard, new=titles + 1, again=family in _FORGETFUL)
    new = [at for at, row in enumerate(found) if row.kind == "new"]
    begun = max(new, key=lambda at: found[at].prompt)  # a title's prompt is a short one
    assert all(row.source == begun for row in found if row.kind == "again")
    return found


def _one_call_each(blocks: Sequence[OutputBlock]) -> list[list[OutputBlock]]:
    """The same, but each call ends a turn."""
    parts: list[list[OutputBlock]] = [[]]
    for block in blocks:
        if parts[-1] and isinstance(parts[-1][-1], ToolCallBlock):
            parts.append([])
        parts[-1].append(block)
    return parts
