"""Texts of the measured sessions: tool results with real code, and prose of the user."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from benchmarks.prepare.dialects import Offer, Tool

MODEL = "some-org/some-model"
TOOL = "tool_3"
SYSTEM_WORDS, REASONING_WORDS, COMMAND_WORDS = 3000, 40, 25
RESULT_LINES = 36  # about 350 tokens
TOOLS = 20
WORDS = """\
the of a file function return value import class self result error data list path name check
open read write if not line test fix add change call each new old size index key text type
"""


class SampleTexts:
    """Texts for one session. The seed determines the prose and the selected code."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._words = WORDS.split()
        self._lines = _code(seed)
        tools = tuple(self._tool(number) for number in range(TOOLS))
        self.offer = Offer(MODEL, self.prose(SYSTEM_WORDS), tools)

    def prose(self, words: int = REASONING_WORDS) -> str:
        return " ".join(self._random.choice(self._words) for _ in range(words))

    def command(self) -> dict[str, str]:
        return {"command": self.prose(COMMAND_WORDS)}

    def result(self) -> str:
        """Return some lines of a file, with line numbers in the format of Claude Code."""
        return "".join(next(self._lines) for _ in range(RESULT_LINES))

    def _tool(self, number: int) -> Tool:
        command = {"type": "string", "description": self.prose(40)}
        schema = {"type": "object", "properties": {"command": command}, "required": ["command"]}
        return Tool(f"tool_{number}", self.prose(150), schema)


def _code(seed: int) -> Iterator[str]:
    """Yield lines of Python's standard library."""
    files = sorted(Path(json.__file__).parent.parent.glob("[a-z]*.py"))
    while True:
        for file in files[seed % len(files) :]:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            yield from (f"{number:6}→{line}" for number, line in enumerate(lines, 1))
        seed = 0
