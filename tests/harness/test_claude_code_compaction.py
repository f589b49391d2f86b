"""The real Claude Code in a small window compacts before or after the window is full."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from claude_code import ClaudeRun, claude
from client_sandbox import Sandbox
from prefix_exactness import ReportRun, assert_exact
from server_setup import QWEN3_CODER, ServerSetup, call, server_setup, text, think, turns

from dovetail_model import OutputBlock

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

FAMILY = QWEN3_CODER
WINDOW = 50_000  # it compacts at 30,750 of them, as configured by `dovetail launch`
SUMS_UP = "Your task is to create a detailed summary"
SUMMARY = (
    "<analysis>\nIt counts.\n</analysis>\n<summary>\nCounted, and noted in note.txt.\n</summary>"
)
#: As if the user had configured a model with a large window.
LARGE_WINDOW = {
    "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "200000",
    "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "200000",
}


def script(counts: int) -> dict[str, Any]:
    """Return a script of long results, a note, and a look at it. Each result has 7,000 tokens."""
    count = call("Bash", command="seq 1000 2400", description="Count")
    note = call("Bash", command="echo gezählt > note.txt", description="Note it")
    look = call("Bash", command="cat note.txt", description="Look at the note")
    number_calls: list[Sequence[OutputBlock]] = [
        [think(f"I count, {number}."), count] for number in range(counts)
    ]
    main: list[Sequence[OutputBlock]] = [
        *number_calls,
        [think("I note it."), note],
        [think("What did I note?"), look],
        [think("That was it."), text("It says: gezählt.")],
    ]
    summing = turns(FAMILY, [think("What happened?"), text(SUMMARY)])
    return {
        "rules": [{"when": {"text": SUMS_UP, "tail": 8_000}, **summing[0]}],
        "turns": turns(FAMILY, *main),
        "end": "fail",
    }


def test_claude_code_compacts_before_an_overflow(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", FAMILY, WINDOW)
    with setup.server(script(counts=3)) as server:
        run = claude(sandbox, server.url, "Count.")
        assert "status=400" not in server.log.read_text()
    _check_compacted(sandbox, setup, run)
    # The conversation after the summary is a new prompt. The request for the summary omits the last
    # turn, which the client stores: it continues the turn before.
    report_run(assert_exact(setup.generations, new=2))


def test_claude_code_compacts_after_an_overflow(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", FAMILY, WINDOW)
    settings = json.dumps({"env": LARGE_WINDOW})
    with setup.server(script(counts=6)) as server:
        run = claude(sandbox, server.url, "Count.", "--settings", settings)
        assert server.log.read_text().count("status=400") == 1
    _check_compacted(sandbox, setup, run)
    report_run(assert_exact(setup.generations, new=2))


def _check_compacted(sandbox: Sandbox, setup: ServerSetup, run: ClaudeRun) -> None:
    """Check that it compacted once and continued."""
    assert run.result == "It says: gezählt."
    assert run.failed == []
    assert (sandbox.work / "note.txt").read_text() == "gezählt\n"
    kinds = [event.get("subtype") for event in run.events]
    assert kinds.count("compact_boundary") == 1
    assert sum(SUMS_UP in one.text for one in setup.generations) == 1
    assert max(len(one.prompt) for one in setup.generations) < WINDOW
