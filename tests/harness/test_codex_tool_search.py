"""The real Codex searches for a tool: the prefix stays, and the model reads its schema."""

import json
import sys
from pathlib import Path

import pytest
from client_sandbox import Sandbox
from codex_runs import codex
from prefix_exactness import ReportRun, assert_exact
from server_setup import QWEN3_CODER, call, server_setup, text, think, turns

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

SERVER = Path(__file__).parent / "support" / "notes_mcp_server.py"
TOOL = "mcp__notes__lookup"


def test_found_tool_keeps_the_prefix(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    script = {
        "turns": turns(
            QWEN3_CODER,
            [think("I need the notes."), call("tool_search", query="lookup note")],
            [think("It is there."), call(TOOL, title="oak")],
            [text("Done: seventeen.")],
        ),
        "end": "fail",
    }
    arguments = (
        "-c", f"mcp_servers.notes.command={json.dumps(sys.executable)}",
        "-c", f"mcp_servers.notes.args={json.dumps([str(SERVER)])}",
    )  # fmt: skip
    with setup.server(script) as server:
        run = codex(sandbox, server.url, "Look up the note on oaks.", *arguments)
    first, second, third = setup.generations
    assert "Looks up one note by its title." not in first.text
    assert "Looks up one note by its title." in second.text
    assert "The note on oak: seventeen." in third.text
    assert run.result == "Done: seventeen."
    assert run.failed == []
    report_run(assert_exact(setup.generations, new=1))
