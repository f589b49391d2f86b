"""The script that a server under test needs behind it, in the notation that it is set to read."""

from typing import Any

import yaml

from dovetail_parsers import resolve
from dovetail_verify.scripted.black_box_script import rules as black_box_rules
from dovetail_verify.scripted.scenarios import (
    NEXT,
    NEXT_WORDS,
    PLAIN_WORDS,
    SCENES,
    Notation,
    call,
    say,
    think,
)

USUAL = "qwen3_coder"
_ONE_CALL = ("harmony",)  # a call ends the turn here: no scene with two could be said


class _Readable(yaml.SafeDumper):
    """Writes what has several lines as it is."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Readable.add_representer(str, _text)


def script_for(family: str = USUAL) -> str:
    """The script as YAML. `TOOL+REASONING` names two parsers, one name also the one beside it."""
    notation = Notation(*parsers(family))
    after = notation.write([think("So it is."), say(NEXT_WORDS)])
    rules: list[dict[str, Any]] = [{"when": {"text": NEXT}, "text": after}]
    rules += [
        {"when": {"text": f"{scene.word} "}, **scene.entry(notation, scene)} for scene in SCENES
    ]
    rules += black_box_rules(notation, say, think, call)
    script = {"rules": rules, "turns": [{"text": PLAIN_WORDS}]}
    return yaml.dump(script, Dumper=_Readable, allow_unicode=True, sort_keys=False, width=100)


def parsers(family: str) -> tuple[str, str]:
    """The parsers that a name means. Scenes need thoughts, and several calls in a turn."""
    tool, _, reasoning = family.partition("+")
    found = resolve(tool)
    if found is None or found.tool_parser is None:
        raise ValueError(f"no parser of calls is named {tool!r}")
    if found.name in _ONE_CALL:
        raise ValueError(f"{tool} ends a turn at its first call: scenes have several")
    reasoning = reasoning or found.reasoning_parser or ""
    if not reasoning:
        raise ValueError(f"{tool} has no thoughts: name a parser of them, as in {tool}+deepseek_r1")
    return tool, reasoning
