"""A tool of the real Codex starts while the model is still generating."""

from pathlib import Path

import pytest
from client_sandbox import Sandbox
from codex_runs import codex
from prefix_exactness import ReportRun, assert_exact
from server_setup import QWEN3_CODER, call, server_setup, text, think, turns

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

DONE = "It began early: früh."


def test_codex_starts_a_tool_before_the_stream_ends(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    """The turn ends only after the tool has run; otherwise both would wait for each other."""
    early = sandbox.work / "early.txt"
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    first = QWEN3_CODER.spell(think("Early."), call("exec_command", cmd=f"echo früh > {early}"))
    rest = QWEN3_CODER.spell(think("And late."), call("exec_command", cmd=f"cat {early}"))
    stop = QWEN3_CODER.eos[0]
    waits = {"chunks": [first, rest], "wait_for": str(early), "stop": stop}
    with setup.server({"turns": [waits, *turns(QWEN3_CODER, [text(DONE)])]}) as server:
        run = codex(sandbox, server.url, "Be early.")
    assert run.result == DONE
    commands = [item for item in run.items if item["type"] == "command_execution"]
    assert [item["aggregated_output"] for item in commands] == ["", "früh\n"]
    assert setup.generations[0].output_text == first + rest + stop
    report_run(assert_exact(setup.generations, new=1))
