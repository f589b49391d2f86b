"""Load the YAML cases: one file per family, with the expected result for any implementation.

A case has the model's `text` and the `blocks` that it must yield:

    - text: visible text
    - reasoning: a reasoning span
    - call: name                # with `args` (exact JSON text) or `json` (compared as JSON),
      args: '{"a": 1}'          # `id` if the format has one, `cut: true` if it never closes
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dovetail_model import Message, ReasoningBlock, TextBlock, ToolCallBlock
from dovetail_parsers import Parser

FOLDER = Path(__file__).parents[1] / "cases"
# The loader in C takes a tenth of the time.
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
TOOLS: list[dict[str, Any]] = yaml.load((FOLDER / "tools.yaml").read_text(), _LOADER)


@dataclass(frozen=True)
class Case:
    id: str
    family: str
    text: str
    blocks: list[dict[str, Any]]
    tool_parser: str | None
    reasoning_parser: str | None
    in_reasoning: bool | None = None
    tools: list[dict[str, Any]] = field(default_factory=lambda: TOOLS, repr=False)
    diagnostics: list[str] | None = None
    finish: str | None = None

    def parser(self) -> Parser:
        return Parser(
            self.tool_parser,
            self.reasoning_parser,
            tools=self.tools,
            in_reasoning=self.in_reasoning,
        )


def load() -> list[Case]:
    found: list[Case] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.name == "tools.yaml":
            continue
        book = yaml.load(path.read_text(), _LOADER)
        shared = {"tool_parser": book.get("tool_parser")}
        shared["reasoning_parser"] = book.get("reasoning_parser")
        found += [Case(**{**shared, "family": path.stem, **case}) for case in book["cases"]]
    return found


def check(case: Case, message: Message) -> None:
    """Check that the message equals the case, block by block."""
    seen = [_shown(block, want) for block, want in _pairs(message.blocks, case.blocks)]
    assert seen == case.blocks
    if case.finish is not None:
        assert message.finish == case.finish
    if case.diagnostics is not None:
        assert sorted({d.code for d in message.diagnostics}) == sorted(case.diagnostics)


def _pairs(blocks: tuple[Any, ...], wanted: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    padded = wanted + [{}] * (len(blocks) - len(wanted))
    return list(zip(blocks, padded, strict=False))


def _shown(block: object, want: dict[str, Any]) -> dict[str, Any]:
    """Return the block in the form of the case, with the fields that the case has."""
    match block:
        case TextBlock(text=text):
            return {"text": text}
        case ReasoningBlock(text=text):
            return {"reasoning": text}
        case ToolCallBlock():
            return _shown_call(block, want)
    raise TypeError(type(block))


def _shown_call(block: ToolCallBlock, want: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {"call": block.name}
    if "json" in want and block.complete:
        shown["json"] = json.loads(block.arguments)
    else:
        shown["args"] = block.arguments
    if "id" in want:
        shown["id"] = block.id
    if not block.complete:
        shown["cut"] = True
    if block.custom:
        shown["custom"] = True
    return shown
