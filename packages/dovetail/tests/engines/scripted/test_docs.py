"""The page about scripts: its examples run, and its tables contain every key."""

import re
from pathlib import Path

import msgspec
from scripted_fixture import engine, play_text, request

from dovetail.engines.scripted import ScriptedOptions
from dovetail.engines.scripted.script import ReplyFailure, RuleCondition, ScriptEntry

PAGE = (Path(__file__).resolve().parents[5] / "docs" / "scripts.md").read_text(encoding="utf-8")


def test_example_script_is_valid() -> None:
    (script,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    playing = engine(script.replace("0.2", "0").replace("0.01", "0"))
    replies = [
        play_text(playing, request(prompt, session="s"))
        for prompt in (
            "weather?",
            "Summarize this conversation",
            "you are a subagent",
            "and now?",
            "you are a subagent: go on",
            "thanks",
        )
    ]
    assert replies[0].endswith('"arguments": {"city": "Paris"}}\n</tool_call><|end|>')
    assert [text.removesuffix("<|end|>") for text in replies[1:]] == [
        "Weather in Paris",
        "The agent looks.",
        "It is sunny.",
        "The agent has found it.",
        "Anything else?",
    ]


def test_every_key_is_explained() -> None:
    for form in (ScriptEntry, RuleCondition, ReplyFailure, ScriptedOptions):
        names = {field.name for field in msgspec.structs.fields(form)} - {"remember"}
        missing = [name for name in names if not re.search(rf"\b{name}\b", PAGE)]
        assert not missing
