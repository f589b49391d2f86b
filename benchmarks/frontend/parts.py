"""The model's output in each workload: a text that both engines output token by token.

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

#: Without possible beginnings of markers, and without numbers: Qwen3 has a separate token for the
#: space before a number, and parsers hold back white space, which is not measured here.
_PLAIN = (
    PROSE.replace("<", "(").replace(">", ")").replace("10 000", "thousand").replace("10", "ten")
)

Write = Callable[[int], str]


@dataclass(frozen=True)
class Part:
    """A text, and its pace in tokens per second (0: as fast as possible).

    `in_step`: all streams get their tokens at the same moments, as from an engine that batches.
    """

    name: str
    text: str
    rate: float = 0.0
    in_step: bool = False

    @property
    def cue(self) -> str:
        return cue(self.name)


def cue(name: str) -> str:
    """Return the user's message that selects a part."""
    return f"play {name}!"


def plain(repeats: int) -> str:
    return _PLAIN * repeats


def reasoning_and_text(repeats: int) -> str:
    """Return equal amounts of reasoning and text."""
    half = _PLAIN * max(1, repeats // 2)
    return f"<think>\n{half}</think>\n\n{half}"


def call(repeats: int) -> str:
    """Return a call that writes a file of code."""
    content = json.dumps(CODE * repeats, ensure_ascii=False)
    return f"<tool_call>\n{_CALL % (TOOL, content)}\n</tool_call>"


def interleaved(repeats: int) -> str:
    """Return reasoning and a call, twice, then text."""
    fifth = max(1, repeats // 5)
    step = f"<think>\n{_PLAIN * fifth}</think>\n\n{call(fifth)}\n"
    return f"{step}{step}{_PLAIN * fifth}"


class Author:
    """Writes texts of about a given number of tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def sized(self, tokens: int, write: Write) -> str:
        """Return the text whose length is nearest to `tokens`, in whole repeats of its material."""
        one, ten = len(self.ids(write(5))), len(self.ids(write(10)))
        repeats = max(1, round(5 + (tokens - one) / ((ten - one) / 5)))
        return write(repeats)

    def first_tokens(self, tokens: int, text: str) -> str:
        """Return the first tokens of a plain text."""
        return self._tokenizer.decode(self.ids(text)[:tokens])


def write_script(parts: Iterable[Part], path: Path) -> Path:
    """Write the parts for the scripted engine. Texts are in files, since YAML parses slowly."""
    rules: list[dict[str, object]] = []
    for part in parts:
        file = path.with_name(f"{part.name}.txt")
        file.write_text(part.text, "utf-8")
        delay = {"between": 1 / part.rate, "in_step": part.in_step} if part.rate else {}
        rules.append({"when": {"text": part.cue}, "file": file.name, "delay": delay})
    rules.append({"text": "ok"})  # for health checks
    path.write_text(json.dumps({"rules": rules}), "utf-8")
    return path


def write_ids(parts: Iterable[Part], author: Author, end: int, path: Path) -> Path:
    """Write the parts for Dynamo's worker, each with the token that ends a turn."""
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
