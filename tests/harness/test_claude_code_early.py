"""The real Claude Code runs a tool while the model still speaks.

The engine itself waits: it says the rest of its turn only when the file that the first call writes
is there. A server that held the call back until the end of the stream would wait for ever.
"""

from pathlib import Path

import pytest
from claude_code import claude
from exactness import Tell, was_exact
from sandbox import Sandbox
from stage import QWEN3_CODER, call, say, stage, think, turns

from dovetail_model import OutputBlock

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

FAMILY = QWEN3_CODER


def test_claude_code_starts_a_tool_early(place: Sandbox, tmp_path: Path, tell: Tell) -> None:
    awaited = place.work / "first.txt"
    early: list[OutputBlock] = [
        think("The first is easy."),
        call("Bash", command="echo eins > first.txt", description="Write"),
    ]
    late: list[OutputBlock] = [
        think("It is there while I still think."),
        call("Bash", command="cat first.txt", description="Show"),
    ]
    whole, begun = FAMILY.spell(*early, *late), FAMILY.spell(*early)
    assert whole.startswith(begun)
    held = {"chunks": [begun, whole.removeprefix(begun)], "wait_for": str(awaited)}
    script = {
        "turns": [
            {**held, "stop": FAMILY.eos[0]},
            *turns(FAMILY, [think("It says one."), say("Done: eins.")]),
        ],
        "end": "fail",
    }
    where = stage(tmp_path / "stage", FAMILY)
    with where.server(script) as server:
        told = claude(place, server.url, "Write it.")
    assert told.result == "Done: eins."
    assert told.failed == []
    assert awaited.read_text() == "eins\n"
    first, second = where.heard
    assert first.output_text == whole + FAMILY.eos[0]
    assert "<tool_response>\neins\n" in second.text
    tell(was_exact(where.heard, new=1))
