"""The real Claude Code with tools that arrive in the middle of a session.

Claude Code 2.1.325 defers most tools, and all tools of MCP servers, until a search loads them.
Earlier versions do not by default. An MCP server can also offer more tools later.
"""

import json
from pathlib import Path

import pytest
from claude_code import claude
from client_sandbox import PROGRAMS, Sandbox
from mcp_server import write_mcp_server
from prefix_exactness import ReportRun, classify
from server_setup import QWEN3_CODER, call, server_setup, text, think, turns
from tool_loops import find_loop_steps

from dovetail.launch.client_version import find_version

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

MIN_VERSION = (2, 1, 325)
DONE = "The tools are loaded: ✓"


@pytest.fixture
def mcp_config(tmp_path: Path) -> Path:
    """The configuration of the server of tools."""
    program, *arguments = write_mcp_server(tmp_path)
    config = tmp_path / "mcp.json"
    server = {"command": program, "args": arguments}
    config.write_text(json.dumps({"mcpServers": {"words": server}}))
    return config


def test_searches_load_tools_without_a_new_prefix(
    sandbox: Sandbox, tmp_path: Path, mcp_config: Path, report_run: ReportRun
) -> None:
    version = find_version(str(PROGRAMS / "claude"))
    if version is None or version < MIN_VERSION:
        pytest.skip("this version of Claude Code does not defer tools: make test-clients")
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    script = {
        "turns": turns(
            QWEN3_CODER,
            [think("I look first."), call("Bash", command="ls -a", description="List files")],
            [
                think("I need the words."),
                call("ToolSearch", query="select:mcp__words__count_words"),
            ],
            [think("Now I count."), call("mcp__words__count_words", text="eins zwei drei")],
            [think("And the web."), call("ToolSearch", query="select:WebFetch,NotebookEdit")],
            [think("Once more."), call("mcp__words__count_words", text="vier fünf")],
            [think("That is all."), text(DONE)],
        ),
        "end": "fail",
    }
    with setup.server(script) as server:
        run = claude(sandbox, server.url, "Count the words.", "--mcp-config", str(mcp_config))
    assert run.result == DONE
    assert run.failed == []
    generations = [one for one in setup.generations if len(one.prompt) > 2_000]
    assert "3 counted by count_words" in generations[-1].text
    assert "2 counted by count_words" in generations[-1].text
    report_run(classify(generations))
    steps = find_loop_steps(generations, QWEN3_CODER)
    assert [step.reprefilled for step in steps] == [0] * 5


def test_late_tools_of_a_server_keep_the_prefix(
    sandbox: Sandbox, tmp_path: Path, mcp_config: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    script = {
        "turns": turns(
            QWEN3_CODER,
            [think("First the words."), call("mcp__words__count_words", text="eins zwei drei")],
            [think("I wait."), call("Bash", command="sleep 2", description="Wait")],
            [think("Now the letters."), call("mcp__words__count_letters", text="vier")],
            [think("That is all."), text(DONE)],
        ),
        "end": "fail",
    }
    with setup.server(script) as server:
        flags = ("--mcp-config", str(mcp_config))
        run = claude(sandbox, server.url, "Count.", *flags, ENABLE_TOOL_SEARCH="false")
    assert run.result == DONE
    assert run.failed == []
    generations = [one for one in setup.generations if len(one.prompt) > 2_000]
    assert "count_letters" not in generations[0].text
    assert "4 counted by count_letters" in generations[-1].text
    report_run(classify(generations))
    steps = find_loop_steps(generations, QWEN3_CODER)
    assert [step.reprefilled for step in steps] == [0] * 3
