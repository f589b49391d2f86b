"""The real Claude Code runs a tool while the model still generates.

The engine waits: it generates the rest of its turn only when the file that the first call writes
exists. With a server that held the call back until the end of the stream, it would wait forever.
"""

from pathlib import Path

import pytest
from claude_code import claude
from client_sandbox import Sandbox
from prefix_exactness import ReportRun, assert_exact
from server_setup import QWEN3_CODER, call, server_setup, text, think, turns

from dovetail_model import OutputBlock

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

FAMILY = QWEN3_CODER


def test_claude_code_starts_a_tool_early(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    awaited = sandbox.work / "first.txt"
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
            *turns(FAMILY, [think("It says one."), text("Done: eins.")]),
        ],
        "end": "fail",
    }
    setup = server_setup(tmp_path / "server", FAMILY)
    with setup.server(script) as server:
        run = claude(sandbox, server.url, "Write it.")
    assert run.result == "Done: eins."
    assert run.failed == []
    assert awaited.read_text() == "eins\n"
    first, second = setup.generations
    assert first.output_text == whole + FAMILY.eos[0]
    assert "<tool_response>\neins\n" in second.text
    report_run(assert_exact(setup.generations, new=1))
