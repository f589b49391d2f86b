"""The output of the model in scripted mode: one scenario for each common fault of servers.

A word in the user's message triggers a scenario. A client must receive its parts in order; their
notation in the model's output depends on the model family.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import yaml

from dovetail_model import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock
from dovetail_parsers import resolve_family, write_message
from dovetail_verify.black_box.samples import MULTIBYTE_TEXT
from dovetail_verify.dialects import TOOL_NAME

PartKind = Literal["reasoning", "text", "call"]
PAUSE_SECONDS = 1.5  # in the middle of the output
LOOKUP_TOOL, WRITE_TOOL = "look_up", "write_file"
NEXT_TRIGGER = "verify-next"  # in a tool result: triggers the next turn
NEXT_TEXT = "All of it is done."
PLAIN_TEXT = "Oslo is sunny today."


@dataclass(frozen=True)
class ScriptedPart:
    """A part of the model's output. `arguments` is the input of a call."""

    kind: PartKind
    text: str = ""
    name: str = ""
    arguments: dict[str, Any] | None = None

    @property
    def block(self) -> OutputBlock:
        if self.kind == "call":
            return ToolCallBlock("", self.name, json.dumps(self.arguments, ensure_ascii=False))
        return ReasoningBlock(self.text) if self.kind == "reasoning" else TextBlock(self.text)


@dataclass(frozen=True)
class Scenario:
    """Scripted output. `build_entry` returns its entry in the script, without the condition."""

    name: str
    parts: tuple[ScriptedPart, ...]
    build_entry: "Callable[[FamilyWriter, Scenario], dict[str, Any]]"

    @property
    def trigger(self) -> str:
        """The word in the user's message that triggers this scenario."""
        return f"verify-{self.name}"


class FamilyWriter:
    """Writes parts in the notation of a model family."""

    def __init__(self, tool_parser: str, reasoning_parser: str) -> None:
        family = resolve_family(tool_parser)
        if family is None:
            raise ValueError(f"no tool call parser is named {tool_parser!r}")
        if family.unified is None:
            family = replace(family, pairs_with=reasoning_parser)
        self._family = family

    def write(self, parts: Sequence[ScriptedPart]) -> str:
        """Return the text that the model generates for these parts."""
        try:
            return write_message([part.block for part in parts], self._family)
        except ValueError:
            raise ValueError("this family cannot alternate reasoning and calls") from None

    @property
    def reasoning_end(self) -> str:
        """The marker that ends a reasoning span; empty if the family has none."""
        content = "\N{NULL}"
        try:
            text = write_message([ReasoningBlock(content)], self._family)
        except ValueError:
            return ""
        return text.partition(content)[2].strip()


def reasoning_part(text: str) -> ScriptedPart:
    return ScriptedPart("reasoning", text)


def text_part(text: str) -> ScriptedPart:
    return ScriptedPart("text", text)


def call_part(name: str, **arguments: Any) -> ScriptedPart:
    return ScriptedPart("call", name=name, arguments=arguments)


def _plain_entry(writer: FamilyWriter, scenario: Scenario) -> dict[str, Any]:
    return {"text": writer.write(scenario.parts)}


def _chunked_entry(writer: FamilyWriter, scenario: Scenario) -> dict[str, Any]:
    """Return chunks of several tokens with a delay between them, as from an engine under load."""
    return {**_plain_entry(writer, scenario), "chunks": 8, "delay": {"between": 0.001}}


def _paused_entry(writer: FamilyWriter, scenario: Scenario) -> dict[str, Any]:
    """Return the first reasoning span and call, a pause, and the rest."""
    first = writer.write(scenario.parts[:2])
    rest = writer.write(scenario.parts).removeprefix(first)
    return {"chunks": [first, rest], "delay": {"between": PAUSE_SECONDS}}


def _paused_argument_entry(writer: FamilyWriter, scenario: Scenario) -> dict[str, Any]:
    """Return output with a pause in the middle of an argument."""
    text = writer.write(scenario.parts)
    half = text.index(_MIDDLE_LINE)
    return {"chunks": [text[:half], text[half:]], "delay": {"between": PAUSE_SECONDS}}


def _whitespace_entry(writer: FamilyWriter, scenario: Scenario) -> dict[str, Any]:
    """Return the parts separated by whitespace."""
    return {"text": "\n\n".join(writer.write([part]) for part in scenario.parts) + "\n"}


def _orphan_marker_entry(writer: FamilyWriter, scenario: Scenario) -> dict[str, Any]:
    """Return output that repeats the end marker of reasoning in the middle of the text."""
    text = writer.write(scenario.parts)
    return {"text": text.replace(" Bergen", f"{writer.reasoning_end} Bergen")}


def _truncated_entry(writer: FamilyWriter, scenario: Scenario) -> dict[str, Any]:
    text = writer.write(scenario.parts)
    return {"text": text[: text.index(_MIDDLE_LINE)], "finish": "length"}


def _malformed_call_entry(writer: FamilyWriter, scenario: Scenario) -> dict[str, Any]:
    """Return the start marker of a call, followed by plain text."""
    opened = writer.write([call_part(LOOKUP_TOOL, city="Oslo")]).partition("look_up")[0]
    opener = opened.split("{")[0].split("<function")[0].strip() or opened
    return {"text": writer.write(scenario.parts[:1]) + f"{opener} no call at all, only words."}


def _single_chunk_entry(writer: FamilyWriter, scenario: Scenario) -> dict[str, Any]:
    return {**_plain_entry(writer, scenario), "chunks": 1}


def _failing_entry(writer: FamilyWriter, scenario: Scenario) -> dict[str, Any]:
    fault = {"after": 12, "kind": "engine", "message": "the engine failed on purpose"}
    return {"text": writer.write(scenario.parts), "fail": fault}


_LINES = [f"line {n:04}: {n * 37} and {n * 91}" for n in range(300)]
_MIDDLE_LINE, LAST_LINE = _LINES[150], _LINES[-1]
_LONG_TEXT = "\n".join(_LINES)
_MARKER_TEXT = "if x: # </think> <think> and <tool_call> in a string\n    pass"
_MULTIBYTE_TEXT = "naïve 🦜👩‍🚀 漢字 한국어"

INTERLEAVED = Scenario(
    "interleaved",
    (
        reasoning_part("First the north of it."),
        call_part(LOOKUP_TOOL, city="Oslo", days=2),
        reasoning_part("Then the south of it."),
        call_part(LOOKUP_TOOL, city="Rome", days=3),
    ),
    _plain_entry,
)
MIXED = Scenario(
    "mixed",
    (
        reasoning_part("Two cities to look up."),
        text_part("I begin with Oslo."),
        call_part(LOOKUP_TOOL, city="Oslo", days=1),
        reasoning_part("That was one of two."),
        text_part("Now for Rome."),
        call_part(LOOKUP_TOOL, city="Rome", days=1),
    ),
    _plain_entry,
)
LONG = Scenario(
    "long",
    (reasoning_part("A long file."), call_part(WRITE_TOOL, path="a.txt", content=_LONG_TEXT)),
    _chunked_entry,
)
PAUSED = Scenario("paced", INTERLEAVED.parts, _paused_entry)
PAUSED_ARGUMENT = Scenario("half-way", LONG.parts, _paused_argument_entry)
WHITESPACE = Scenario("framed", INTERLEAVED.parts, _whitespace_entry)
ORPHAN_MARKER = Scenario(
    "orphan",
    (reasoning_part("North."), text_part("Oslo is sunny, and Bergen is not.")),
    _orphan_marker_entry,
)
MARKERS = Scenario(
    "markers",
    (reasoning_part("Code."), call_part(WRITE_TOOL, path="b.py", content=_MARKER_TEXT)),
    _plain_entry,
)
TRUNCATED = Scenario("cut", LONG.parts, _truncated_entry)
MALFORMED = Scenario(
    "malformed",
    (reasoning_part("Hm."), text_part("no call at all, only words.")),
    _malformed_call_entry,
)
MULTIBYTE = Scenario(
    "letters",
    (
        reasoning_part(_MULTIBYTE_TEXT),
        text_part(_MULTIBYTE_TEXT),
        call_part(WRITE_TOOL, path="c", content=_MULTIBYTE_TEXT),
    ),
    _single_chunk_entry,
)
PLAIN = Scenario("plain", (text_part(PLAIN_TEXT),), _plain_entry)
FAILING = Scenario(
    "failing", (reasoning_part("A long sentence. " * 20), text_part("Words. " * 20)), _failing_entry
)

SCENARIOS = (
    INTERLEAVED,
    MIXED,
    LONG,
    PAUSED,
    PAUSED_ARGUMENT,
    WHITESPACE,
    ORPHAN_MARKER,
    MARKERS,
    TRUNCATED,
    MALFORMED,
    MULTIBYTE,
    PLAIN,
    FAILING,
)


_NUMBER_WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
_TAIL_CHARS = 400  # the last message and the text that the template adds after it
ScriptEntry = dict[str, Any]


def black_box_rules(writer: FamilyWriter) -> list[ScriptEntry]:
    """Return the rules for the prompts of black-box checks, in order of precedence."""

    def entry(text: str, *parts: ScriptedPart, **more: Any) -> ScriptEntry:
        return {"when": {"text": text, "tail": _TAIL_CHARS}, "text": writer.write(parts), **more}

    weather = reasoning_part("The tool knows."), call_part(TOOL_NAME, city="Paris")
    namespaced = (
        reasoning_part("The tool knows."),
        call_part(f"weather__{TOOL_NAME}", city="Paris"),
    )
    patch = reasoning_part("A patch."), call_part("apply_patch", input="*** Begin Patch\n")
    many = reasoning_part("Many.")
    return [
        {"when": {"text": f"weather__{TOOL_NAME}"}, "text": writer.write(namespaced)},
        entry(
            "with the key title", reasoning_part("Short."), text_part('{"title": "The weather"}')
        ),
        entry("Reply yes or no.", reasoning_part("It is."), text_part("yes")),
        entry("Use the tool.", *weather),
        entry("apply_patch", *patch),
        entry("Repeat exactly:", reasoning_part("As it is."), text_part(MULTIBYTE_TEXT), chunks=1),
        entry("one to one thousand", many, text_part(_NUMBER_WORDS * 20), delay={"between": 0.05}),
        entry("one to one hundred", many, text_part(_NUMBER_WORDS * 8)),
        entry("Name three colours", reasoning_part("Warm ones."), text_part("Red\nOrange\nYellow")),
    ]


DEFAULT_FAMILY = "qwen3_coder"
_SINGLE_CALL_FAMILIES = ("harmony",)  # a call ends the turn, so a turn cannot have two


class _BlockStyleDumper(yaml.SafeDumper):
    """Writes strings of several lines as block scalars."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_BlockStyleDumper.add_representer(str, _represent_text)


def render_script(family: str = DEFAULT_FAMILY) -> str:
    """Return the script as YAML. `family` is `TOOL` or `TOOL+REASONING`, the names of parsers."""
    writer = FamilyWriter(*resolve_parser_names(family))
    after = writer.write([reasoning_part("So it is."), text_part(NEXT_TEXT)])
    rules: list[dict[str, Any]] = [{"when": {"text": NEXT_TRIGGER}, "text": after}]
    rules += [
        {"when": {"text": f"{scenario.trigger} "}, **scenario.build_entry(writer, scenario)}
        for scenario in SCENARIOS
    ]
    rules += black_box_rules(writer)
    script = {"rules": rules, "turns": [{"text": PLAIN_TEXT}]}
    return yaml.dump(
        script, Dumper=_BlockStyleDumper, allow_unicode=True, sort_keys=False, width=100
    )


def resolve_parser_names(family: str) -> tuple[str, str]:
    """Return the parsers of a family. Scenarios need reasoning and several calls per turn."""
    tool, _, reasoning = family.partition("+")
    found = resolve_family(tool)
    if found is None or found.tool_parser is None:
        raise ValueError(f"no tool call parser is named {tool!r}")
    if found.name in _SINGLE_CALL_FAMILIES:
        raise ValueError(
            f"{tool} ends a turn at its first call, but the scenarios have several calls per turn"
        )
    reasoning = reasoning or found.reasoning_parser or ""
    if not reasoning:
        raise ValueError(f"{tool} has no reasoning parser; name one, as in {tool}+deepseek_r1")
    return tool, reasoning
