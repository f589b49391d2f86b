"""A tool of the real Codex starts while the model is still speaking."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from codex_runs import codex
from exactness import Row, was_exact
from sandbox import Sandbox
from stage import QWEN3_CODER, call, say, stage, think, turns

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

DONE = "It began early: früh."


def test_codex_starts_a_tool_before_the_stream_ends(
    place: Sandbox, tmp_path: Path, tell: Callable[[Sequence[Row]], None]
) -> None:
    """The end of the turn is said when the tool has run, and not before: else both would wait."""
    early = place.work / "early.txt"
    scene = stage(tmp_path / "stage", QWEN3_CODER)
    first = QWEN3_CODER.spell(think("Early."), call("exec_command", cmd=f"echo früh > {early}"))
    rest = QWEN3_CODER.spell(think("And late."), call("exec_command", cmd=f"cat {early}"))
    stop = QWEN3_CODER.eos[0]
    waits = {"chunks": [first, rest], "wait_for": str(early), "stop": stop}
    with scene.server({"turns": [waits, *turns(QWEN3_CODER, [say(DONE)])]}) as server:
        told = codex(place, server.url, "Be early.")
    assert told.result == DONE
    commands = [item for item in told.items if item["type"] == "command_execution"]
    assert [item["aggregated_output"] for item in commands] == ["", "früh\n"]
    assert scene.heard[0].output_text == first + rest + stop
    tell(was_exact(scene.heard, new=1))
