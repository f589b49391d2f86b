"""The tasks. Each has one correct result, which is checked in the files, not in the output."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.eval.tools import ToolError, Workspace

SYSTEM_PROMPT = """\
You work on files in one folder. You have tools for it and nothing else: no shell, no network.
Do exactly what the task says. Make the calls that the task needs; calls that do not depend on each
other can be made together. If a call fails, read why and mend it. When everything is done, say so
in one short sentence and make no more calls."""

TaskCheck = Callable[[Workspace], str | None]
"""Returns the problem with the result, or None if it is correct."""


@dataclass(frozen=True)
class EvalTask:
    """One task. `files` exist at the start, `records` are returned by the tool `look_up`."""

    id: str
    title: str
    instructions: str
    check: TaskCheck
    files: Mapping[str, str] = field(default_factory=dict)
    records: Mapping[str, str] = field(default_factory=dict)

    @property
    def prompt(self) -> str:
        return f"Task {self.id}.\n\n{self.instructions}"


def _expect_text(path: str, expected: str) -> TaskCheck:
    """Build a check that the file has this text, ignoring trailing white space."""

    def check(workspace: Workspace) -> str | None:
        try:
            actual = workspace.read(path)
        except ToolError:
            return f"{path} does not exist"
        if actual.rstrip() == expected.rstrip():
            return None
        return f"{path} has unexpected content{_first_difference(actual, expected)}"

    return check


def _expect_json(path: str, expected: Any) -> TaskCheck:
    def check(workspace: Workspace) -> str | None:
        try:
            actual = json.loads(workspace.read(path))
        except ToolError:
            return f"{path} does not exist"
        except ValueError:
            actual = None
        return None if actual == expected else f"{path} has unexpected content"

    return check


def _first_difference(actual: str, expected: str) -> str:
    pairs = zip(actual.rstrip().splitlines(), expected.rstrip().splitlines(), strict=False)
    for number, (one, other) in enumerate(pairs, 1):
        if one != other:
            return f" in line {number}: {one[:60]!r}, expected {other[:60]!r}"
    return f": {len(actual.splitlines())} lines, expected {len(expected.splitlines())}"


_PLAN = "# Plan\n\n- measure the boards\n- cut the tails\n- fit the joint\n"

_SETTINGS = """\
[server]
port = 8080
timeout = 30

[client]
port = 8080
timeout = 30
retries = 3
"""

_STOCK = {
    "stock/north.txt": "oak 12\nash 7\nelm 31\n",
    "stock/south.txt": "oak 5\nyew 18\n",
    "stock/west.txt": "ash 23\nfir 4\nbox 9\n",
}

_MODULES = {
    f"src/{name}.py": f'"""{name.title()}."""\n\n\ndef {name}_size(items):\n    return len(items)\n'
    for name in ("bench", "chisel", "joint", "ledger", "mallet", "saw")
} | {
    "src/plane.py": '"""Plane."""\n\nDEPTH = 3\n\n\ndef shave(board, passes):\n'
    "    for _ in range(passes):\n        board.thickness -= DEPTH\n    return board\n",
    "README.md": "A workshop. `shave` is what the plane does.\n",
}

_WORDS = {"words/a.txt": "heron", "words/b.txt": "willow", "words/c.txt": "ember"}

_ORDER = {
    "customer": {
        "name": "Zoë Müller",
        "address": {"street": "Lindenstraße 5", "city": "Köln", "postcode": "50674"},
    },
    "items": [
        {"sku": "CH-12", "quantity": 2, "options": ["left", "long"]},
        {"sku": "MA-3", "quantity": 1, "options": []},
    ],
    "shipping": "express",
    "gift": True,
}

_LINE = 'Zeile {n}: "naïve café" – 漢字 🦜 \\ tab→ {square}'
_LONG = "\n".join(_LINE.format(n=n, square=n * n) for n in range(1, 41)) + "\n"

TASKS: tuple[EvalTask, ...] = (
    EvalTask(
        "write",
        "write a file, read it back",
        "Write the file notes/plan.md with exactly this text, then read it back to check it:\n\n"
        + _PLAN,
        _expect_text("notes/plan.md", _PLAN),
    ),
    EvalTask(
        "edit",
        "edit by exact replacement, where the text occurs twice",
        "In settings.ini, change the timeout of the section [client] from 30 to 90 with edit_file. "
        "Change nothing else.",
        _expect_text(
            "settings.ini", _SETTINGS.replace("timeout = 30\nretries", "timeout = 90\nretries")
        ),
        {"settings.ini": _SETTINGS},
    ),
    EvalTask(
        "sum",
        "read numbers in several files and add them",
        "Each line of the files in the folder stock has a wood and a number. Add up all numbers "
        "of all files and write the total, digits only, to total.txt.",
        _expect_text("total.txt", "109"),
        _STOCK,
    ),
    EvalTask(
        "find",
        "find a definition in several files",
        "Find the function `shave` in the files under src. Write to found.txt one line: the path "
        "of the file, a colon, and the number of the line on which its `def` stands.",
        _expect_text("found.txt", "src/plane.py:6"),
        _MODULES,
    ),
    EvalTask(
        "parallel",
        "read three files, ideally in parallel",
        "Read words/a.txt, words/b.txt and words/c.txt, all three in one go. Write their three "
        "words in this order, with hyphens between them, to joined.txt.",
        _expect_text("joined.txt", "heron-willow-ember"),
        _WORDS,
    ),
    EvalTask(
        "nested",
        "a call with a nested schema",
        "Read order.txt and place that order with place_order.",
        _expect_json("order.json", _ORDER),
        {
            "order.txt": "For Zoë Müller, Lindenstraße 5, 50674 Köln. Two of CH-12 with the "
            "options left and long (in this order), one of MA-3 without options. It is a gift, "
            "and it has to be there fast: express.\n"
        },
    ),
    EvalTask(
        "long",
        "a long file with unicode and quotes",
        "Write the file lines.txt with 40 lines. Line n is this, with n and its square put in:\n\n"
        + _LINE.format(n="<n>", square="<n*n>")
        + "\n\nSo the first three lines are:\n\n"
        + "".join(_LONG.splitlines(keepends=True)[:3]),
        _expect_text("lines.txt", _LONG),
    ),
    EvalTask(
        "recover",
        "continue after a tool failed",
        "Look up the records part-1 and part-2. Each says a price. Write the two prices added up, "
        "digits only, to price.txt.",
        _expect_text("price.txt", "403"),
        records={"part-1": "price: 146", "part-2": "price: 257"},
    ),
)
