"""Texts of the experiments: a system text and tools of a given length, questions, reasoning.

They are composed of a few phrases by a seeded random generator: the same words in each run, typical
English and code for a tokenizer, without repetition.
"""

import json
import random
from collections.abc import Callable
from typing import Any

Count = Callable[[str], int]  # the tokens of a text

TOOLS = 24
MIN_TOOL_TOKENS = 300  # tokens
SHARE_OF_TOOLS = 0.25  # of the constant tokens of a request


def _lines(listed: str) -> list[str]:
    """Split a text at commas."""
    return [one.strip() for one in listed.split(",")]


_WHO = _lines(
    """the assistant, a reviewer, the build, the test runner, each worker, the scheduler,
    the parser, every caller, the cache, the migration, the client, the index,
    the release script, a plugin"""
)
_DOES = _lines(
    """reads, checks, rewrites, keeps, reports, skips, compares, collects, validates, updates,
    records, loads, sorts, measures, cleans up, announces, opens, merges, waits for"""
)
_WHAT = _lines(
    """the changed files, every failing test, the configuration, the list of imports, open requests,
    the lock file, stale entries, the command's output, all log lines, the public interface,
    the database schema, the working folder, its own notes, the last answer, the error message"""
)
_HOW = _lines(
    """before anything is written, without asking again, in the order they were found, only once,
    as soon as the user agrees, when the branch is clean, unless a path is given, in small steps,
    and says why, with the exact line number, after the first failure, on every platform"""
)
_HEADS = _lines(
    """Tone and style, Working with files, Running commands, Version control, Tests, Errors,
    Long tasks, Searching, Reviews, Security, Releases, Asking the user"""
)
_NAMES = _lines(
    "path, pattern, command, content, limit, offset, timeout, reason, target, mode, query, depth"
)
_VERBS = _lines("read, write, edit, find, list, run, stop, fetch, move, watch, plan, note")
_THINGS = _lines(
    "file, folder, test, branch, process, page, symbol, session, task, commit, table, report"
)


class SampleTexts:
    """Texts from one seed. `count` returns the number of tokens of a text."""

    def __init__(self, count: Count, seed: int = 1) -> None:
        self._count = count
        self._dice = random.Random(seed)

    def text(self, tokens: int) -> str:
        """Return prose of about this many tokens, in complete sentences."""
        sentences, length = [self._sentence()], 0
        while length < tokens:
            sentence = self._sentence()
            sentences.append(sentence)
            length = self._count(" ".join(sentences))
        words = " ".join(sentences).split()
        while len(words) > 1 and self._count(" ".join(words[:-1])) >= tokens:
            words.pop()
        return " ".join(words)

    def page(self, tokens: int) -> str:
        """Return sections of prose, lists and code, up to about this many tokens."""
        parts: list[str] = []
        left = tokens
        while left > 0:
            part = self._part(len(parts))
            size = self._count(part) + 1  # with the separator
            if size > left:
                parts.append(self.text(left))
                break
            parts.append(part)
            left -= size
        return "\n\n".join(parts)

    def tools(self, tokens: int) -> list[dict[str, Any]]:
        """Return tools with schemas in the style of Claude Code, about this many tokens as JSON."""
        names = [f"{verb}_{thing}" for verb in _VERBS for thing in _THINGS]
        made = []
        for name in self._dice.sample(names, max(1, min(TOOLS, tokens // MIN_TOOL_TOKENS))):
            fields = {field: self._field(field) for field in self._dice.sample(_NAMES, 4)}
            made.append(_tool(name, "", fields))
        rest = tokens - sum(self._count(json.dumps(tool)) for tool in made)
        for tool in made:
            tool["description"] = self.page(max(rest // len(made), 8))
        return made

    def reasoning(self, tokens: int) -> str:
        return self.text(tokens)

    def phrase(self) -> str:
        """Return a few words."""
        return f"{self._pick(_WHO)} {self._pick(_DOES)} {self._pick(_WHAT)}"

    def _sentence(self) -> str:
        first = f"{self.phrase()} {self._pick(_HOW)}"
        more = ""
        if self._dice.random() < 0.5:
            more = f", and {self._pick(_WHO)} {self._pick(_DOES)} {self._pick(_WHAT)}"
        return f"{first[0].upper()}{first[1:]}{more}."

    def _part(self, number: int) -> str:
        match number % 4:
            case 0:
                paragraph = " ".join(self._sentence() for _ in range(6))
                return f"# {self._pick(_HEADS)} ({number // 4 + 1})\n\n{paragraph}"
            case 1:
                return "\n".join(f"- {self._sentence()}" for _ in range(7))
            case 2:
                return f"```python\n{''.join(self._code() for _ in range(3))}```"
            case _:
                return " ".join(self._sentence() for _ in range(8))

    def _code(self) -> str:
        name, thing = self._pick(_VERBS), self._pick(_THINGS)
        field, limit = self._pick(_NAMES), self._dice.randrange(2, 5000)
        return (
            f"def {name}_{thing}({field}: str, limit: int = {limit}) -> list[str]:\n"
            f'    """{self._sentence()}"""\n'
            f"    found = [{thing} for {thing} in load_all({field}) if {thing}.size < limit]\n"
            f'    log.info("{name} %d of %s", len(found), {field})\n'
            f"    return sorted(found, key=lambda one: one.{self._pick(_NAMES)})[:limit]\n\n"
        )

    def _field(self, name: str) -> dict[str, Any]:
        kind = "integer" if name in ("limit", "offset", "timeout", "depth") else "string"
        return {"type": kind, "description": self._sentence()}

    def _pick(self, words: list[str]) -> str:
        return self._dice.choice(words)


def _tool(name: str, description: str, fields: dict[str, Any], required: int = 2) -> dict[str, Any]:
    """Return a tool whose first fields are required."""
    return {
        "name": name,
        "description": description,
        "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": fields,
            "required": list(fields)[:required],
            "additionalProperties": False,
        },
    }


#: Tools that the scripted turns call. Their schemas have the fields that Claude Code rewrites.
SCRIPTED_TOOLS: tuple[dict[str, Any], ...] = (
    _tool(
        "Bash",
        "Runs a command in the working folder and gives back what it prints.",
        {
            "command": {"type": "string", "description": "What to run."},
            "timeout": {"type": "number", "description": "Milliseconds that it may take."},
            "description": {"type": "string", "description": "What it does, in few words."},
            "run_in_background": {"type": "boolean", "default": False},
        },
        required=1,
    ),
    _tool(
        "Grep",
        "Searches files for a regular expression.",
        {
            "pattern": {"type": "string", "description": "The regular expression."},
            "path": {"type": "string", "description": "Where to search."},
            "glob": {"type": "string", "description": "Which files."},
            "head_limit": {"type": "number", "description": "The most lines to show."},
            "multiline": {"type": "boolean", "default": False},
        },
        required=1,
    ),
)
