"""The real Claude Code loads a deferred tool: the prefix stays, and the model reads its schema.

Claude Code defers the tools of MCP servers. After a search its result refers to the tools found,
and the list of tools grows.
"""

import json
import sys
from pathlib import Path

import pytest
from claude_code import claude
from client_sandbox import Sandbox
from prefix_exactness import ReportRun, assert_exact
from server_setup import QWEN3_CODER, call, server_setup, text, think, turns

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

FAMILY = QWEN3_CODER
TOOL = "mcp__notes__lookup"
SERVER = Path(__file__).parent / "support" / "notes_mcp_server.py"


def test_loaded_tool_keeps_the_prefix(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    config = tmp_path / "mcp.json"
    server_command = {"command": sys.executable, "args": [str(SERVER)]}
    config.write_text(json.dumps({"mcpServers": {"notes": server_command}}))
    script = {
        "turns": turns(
            FAMILY,
            [think("I need the notes."), call("ToolSearch", query=f"select:{TOOL}", max_results=1)],
            [think("It is there."), call(TOOL, title="oak")],
            [think("It is seventeen."), text("Done: seventeen.")],
        ),
        "end": "fail",
    }
    setup = server_setup(tmp_path / "server", FAMILY)
    with setup.server(script) as server:
        run = claude(
            sandbox,
            server.url,
            "Look up the note on oaks.",
            "--mcp-config",
            str(config),
            ENABLE_TOOL_SEARCH="true",
        )
    assert run.result == "Done: seventeen."
    assert run.failed == []
    assert run.tools == ["ToolSearch", TOOL]
    first, second, third = setup.generations
    assert "Looks up one note by its title." not in first.text
    shown = second.text.removeprefix(first.text)
    assert f"<name>{TOOL}</name>" in shown
    assert "Looks up one note by its title." in shown
    assert "The note on oak: seventeen." in third.text
    report_run(assert_exact(setup.generations, new=1))
