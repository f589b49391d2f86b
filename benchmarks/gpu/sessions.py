"""The sessions of the experiments: the user's prompts and the scripted output.

A session is identified by its name, such as `D-3`. The server's engine and the load both build it
from that name, so that they need not exchange it.
"""

import json
from dataclasses import dataclass
from zlib import crc32

from benchmarks.gpu.claude import INTO_FOLDER
from benchmarks.gpu.sample_texts import Count, SampleTexts

SUFFIX = 60  # tokens of a question, and of the results of a turn's calls together
REASONING_TOKENS = 500
STEP_REASONING_TOKENS, STEPS = 120, 10
SHORT = "<think>\nThat is clear.\n</think>\n\nIt is done."


@dataclass(frozen=True)
class ScriptedSession:
    """A session: the question, then an output and the results of its calls, turn by turn.

    The last output needs no results, since no request follows.
    """

    question: str
    outputs: tuple[str, ...]
    results: tuple[tuple[str, str], ...] = ()


def make_session(name: str, count: Count) -> ScriptedSession:
    """Build the session of a name, which begins with the name of the experiment."""
    kind = name.partition("-")[0]
    texts = SampleTexts(count, crc32(name.encode()))
    question = texts.text(SUFFIX)
    if kind in ("A", "B", "C"):
        return ScriptedSession(question, (SHORT,))
    if kind.startswith("G"):
        outputs = tuple(_interleaved(texts) for _ in range(STEPS - 1))
        return ScriptedSession(question, (*outputs, SHORT), tuple(_results(texts) for _ in outputs))
    return ScriptedSession(question, (_one_turn(texts), SHORT), (_results(texts),))


def _one_turn(texts: SampleTexts) -> str:
    """Return reasoning, then two calls, in the format of Qwen3."""
    reasoning = f"<think>\n{texts.reasoning(REASONING_TOKENS)}\n</think>"
    return f"{reasoning}\n\n{_bash(texts)}\n{_grep(texts)}"


def _interleaved(texts: SampleTexts) -> str:
    """Return a turn with reasoning between the calls, too."""
    reasoning = [
        f"<think>\n{texts.reasoning(STEP_REASONING_TOKENS)}\n</think>\n\n" for _ in range(2)
    ]
    return f"{reasoning[0]}{_bash(texts)}\n{reasoning[1]}{_grep(texts)}"


def _bash(texts: SampleTexts) -> str:
    arguments = {
        "description": texts.phrase().capitalize(),
        "command": f"{INTO_FOLDER}pytest -q -k '{texts.phrase()}' 2>&1 | tail -n 20",
        "timeout": 5000.0,
    }
    return _call("Bash", arguments)


def _grep(texts: SampleTexts) -> str:
    pattern = rf"def \w+\(.*\b{texts.phrase().split()[-1]}\b"
    arguments = {"pattern": pattern, "path": "src", "head_limit": 40.0, "glob": "**/*.py"}
    return _call("Grep", arguments)


def _call(name: str, arguments: dict[str, object]) -> str:
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def _results(texts: SampleTexts) -> tuple[str, str]:
    return texts.text(SUFFIX // 2 - 8), texts.text(SUFFIX // 2 - 8)
