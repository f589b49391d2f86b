"""The script that a server under test needs behind it, in the notation that it is set to read."""

from typing import Any

import yaml

from dovetail_parsers import resolve_family
from dovetail_verify.scripted.black_box_script import black_box_rules as black_box_rules
from dovetail_verify.scripted.scenarios import (
    NEXT_TEXT,
    NEXT_TRIGGER,
    PLAIN_TEXT,
    SCENARIOS,
    FamilyWriter,
    call_part,
    reasoning_part,
    text_part,
)

DEFAULT_FAMILY = "qwen3_coder"
_SINGLE_CALL_FAMILIES = ("harmony",)  # a call ends the turn here: no scene with two could be said


class _BlockStyleDumper(yaml.SafeDumper):
    """Writes what has several lines as it is."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_BlockStyleDumper.add_representer(str, _represent_text)


def render_script(family: str = DEFAULT_FAMILY) -> str:
    """The script as YAML. `TOOL+REASONING` names two parsers, one name also the one beside it."""
    notation = FamilyWriter(*resolve_parser_names(family))
    after = notation.write([reasoning_part("So it is."), text_part(NEXT_TEXT)])
    rules: list[dict[str, Any]] = [{"when": {"text": NEXT_TRIGGER}, "text": after}]
    rules += [
        {"when": {"text": f"{scene.trigger} "}, **scene.build_entry(notation, scene)}
        for scene in SCENARIOS
    ]
    rules += black_box_rules(notation, text_part, reasoning_part, call_part)
    script = {"rules": rules, "turns": [{"text": PLAIN_TEXT}]}
    return yaml.dump(
        script, Dumper=_BlockStyleDumper, allow_unicode=True, sort_keys=False, width=100
    )


def resolve_parser_names(family: str) -> tuple[str, str]:
    """The parsers that a name means. Scenes need thoughts, and several calls in a turn."""
    tool, _, reasoning = family.partition("+")
    found = resolve_family(tool)
    if found is None or found.tool_parser is None:
        raise ValueError(f"no parser of calls is named {tool!r}")
    if found.name in _SINGLE_CALL_FAMILIES:
        raise ValueError(f"{tool} ends a turn at its first call: scenes have several")
    reasoning = reasoning or found.reasoning_parser or ""
    if not reasoning:
        raise ValueError(f"{tool} has no thoughts: name a parser of them, as in {tool}+deepseek_r1")
    return tool, reasoning
