"""The model's output in each workload: one text, which both engines output token by token.

A request names its part in the user's message. The scripted engine finds the name in the text of
the prompt; Dynamo's worker, which has no tokenizer, finds its ids.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.texts import CODE, PROSE
from dovetail_tokenizers import Tokenizer

TOOL = "write_file"
BEGINS = "The"  # the first word of plain texts, and of no event's frame
VALUE = "def"  # the first word in the value of calls
_CALL = '{"name": "%s", "arguments": {"path": "a.py", "content": %s}}'

#: Without what could begin a marker, and without numbers: Qwen3 spells the space before one as a
#: token of its own, and white space waits for what follows. Parsers that wait are not asked here.
_PLAIN = (
    PROSE.replace("<", "(").replace(">", ")").replace("10 000", "thousand").replace("10", "ten")
)

Write = Callable[[int], str]


@dataclass(frozen=True)
class Part:
    """A text, the tokens a second at which a stream gets it (0: as fast as possible).

    `in_step`: all streams get their tokens at the same moments, as engines decode in batches.
    """

    name: str
    text: str
    rate: float = 0.0
    in_step: bool = False

    @property
    def cue(self) -> str:
        return cue(self.name)


def cue(name: str) -> str:
    """The user's message that selects a part."""
    return f"play {name}!"


def plain(repeats: int) -> str:
    return _PLAIN * repeats


def reasoning_and_text(repeats: int) -> str:
    """As much reasoning as text."""
    half = _PLAIN * max(1, repeats // 2)
    return f"<think>\n{half}</think>\n\n{half}"


def call(repeats: int) -> str:
    """One call that writes a file of code."""
    content = json.dumps(CODE * repeats, ensure_ascii=False)
    return f"<tool_call>\n{_CALL % (TOOL, content)}\n</tool_call>"


def interleaved(repeats: int) -> str:
    """Reasoning and a call, twice, and text."""
    fifth = max(1, repeats // 5)
    step = f"<think>\n{_PLAIN * fifth}</think>\n\n{call(fifth)}\n"
    return f"{step}{step}{_PLAIN * fifth}"


class Author:
    """Write texts of about so many tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def sized(self, tokens: int, write: Write) -> str:
        """The text whose length is nearest to `tokens`, in whole repeats of its material."""
        one, ten = len(self.ids(write(5))), len(self.ids(write(10)))
        repeats = max(1, round(5 + (tokens - one) / ((ten - one) / 5)))
        return write(repeats)

    def first_tokens(self, tokens: int, text: str) -> str:
        """The first tokens of a plain text."""
        return self._tokenizer.decode(self.ids(text)[:tokens])


def write_script(parts: Iterable[Part], path: Path) -> Path:
    """The parts for the scripted engine. Texts stand in files: YAML is slow to read."""
    rules: list[dict[str, object]] = []
    for part in parts:
        file = path.with_name(f"{part.name}.txt")
        file.write_text(part.text, "utf-8")
        delay = {"between": 1 / part.rate, "in_step": part.in_step} if part.rate else {}
        rules.append({"when": {"text": part.cue}, "file": file.name, "delay": delay})
    rules.append({"text": "ok"})  # for whoever only looks whether the engine is there
    path.write_text(json.dumps({"rules": rules}), "utf-8")
    return path


def write_ids(parts: Iterable[Part], author: Author, end: int, path: Path) -> Path:
    """The parts for Dynamo's worker, each with the token that ends a turn."""
    entries = [
        {
            "marker": author.ids(part.cue),
            "ids": [*author.ids(part.text), end],
            "rate": part.rate,
            "in_step": part.in_step,
        }
        for part in parts
    ]
    path.write_text(json.dumps(entries), "utf-8")
    return path
