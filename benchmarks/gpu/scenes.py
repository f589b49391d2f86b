"""The sessions of the experiments: what the user says, what the assistant is made to say.

A session is known by its name, `D-3` say. The server's actor and the load both make them out of
that name, so that neither has to tell the other.
"""

import json
from dataclasses import dataclass
from zlib import crc32

from benchmarks.gpu.claude import INTO_FOLDER
from benchmarks.gpu.matter import Count, Matter

SUFFIX = 60  # tokens of a question, and of the results of a turn's calls together
THOUGHT = 500
STEP_THOUGHT, STEPS = 120, 10
SHORT = "<think>\nThat is clear.\n</think>\n\nIt is done."


@dataclass(frozen=True)
class Scene:
    """A session: the question, then an answer and the results of its calls, turn by turn.

    The last answer needs no results: nothing comes after it.
    """

    question: str
    answers: tuple[str, ...]
    results: tuple[tuple[str, str], ...] = ()


def make_scene(name: str, count: Count) -> Scene:
    """The session of a name, which begins with the experiment's."""
    kind = name.partition("-")[0]
    matter = Matter(count, crc32(name.encode()))
    question = matter.text(SUFFIX)
    if kind in ("A", "B", "C"):
        return Scene(question, (SHORT,))
    if kind.startswith("G"):
        answers = tuple(_interleaved(matter) for _ in range(STEPS - 1))
        return Scene(question, (*answers, SHORT), tuple(_results(matter) for _ in answers))
    return Scene(question, (_one_turn(matter), SHORT), (_results(matter),))


def _one_turn(matter: Matter) -> str:
    """Thinking, then two calls, as Qwen3 writes them."""
    return f"<think>\n{matter.thought(THOUGHT)}\n</think>\n\n{_bash(matter)}\n{_grep(matter)}"


def _interleaved(matter: Matter) -> str:
    """Thinking between the calls, too."""
    thoughts = [f"<think>\n{matter.thought(STEP_THOUGHT)}\n</think>\n\n" for _ in range(2)]
    return f"{thoughts[0]}{_bash(matter)}\n{thoughts[1]}{_grep(matter)}"


def _bash(matter: Matter) -> str:
    arguments = {
        "description": matter.phrase().capitalize(),
        "command": f"{INTO_FOLDER}pytest -q -k '{matter.phrase()}' 2>&1 | tail -n 20",
        "timeout": 5000.0,
    }
    return _call("Bash", arguments)


def _grep(matter: Matter) -> str:
    pattern = rf"def \w+\(.*\b{matter.phrase().split()[-1]}\b"
    arguments = {"pattern": pattern, "path": "src", "head_limit": 40.0, "glob": "**/*.py"}
    return _call("Grep", arguments)


def _call(name: str, arguments: dict[str, object]) -> str:
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def _results(matter: Matter) -> tuple[str, str]:
    return matter.text(SUFFIX // 2 - 8), matter.text(SUFFIX // 2 - 8)
