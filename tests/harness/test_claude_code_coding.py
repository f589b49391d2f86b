"""The real Claude Code with a coding task: tools run, files exist, turns are exact."""

import subprocess
from pathlib import Path

import pytest
from claude_code import claude, continues_after_system_text
from claude_coding_task import COMMIT, TASK, coding_script, project_files
from client_sandbox import Sandbox
from prefix_exactness import ReportRun, Row, assert_exact
from server_setup import (
    QWEN3_5,
    QWEN3_CODER,
    ServerSetup,
    assert_refuses_web_pages,
    server_setup,
)

from dovetail.engines.scripted.engine import RecordedGeneration

#: One line per turn; the line with Read and Bash is the subagent's.
TOOLS = """
    Bash Bash
    Write
    Write Write
    Bash Read
    Edit Edit
    Agent
    Read Bash
    Bash
"""


def test_claude_code_codes(sandbox: Sandbox, tmp_path: Path, report_run: ReportRun) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    with setup.server(coding_script(QWEN3_CODER, sandbox.work)) as server:
        report_run(_codes(setup, sandbox, server.url))
        assert_refuses_web_pages(server)


@pytest.mark.harness
@pytest.mark.timeout(300)
def test_claude_code_codes_and_continues(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    before, after = _codes_and_commits(setup, sandbox)
    assert continues_after_system_text(before, after)
    # New prompts: the conversation, the subagent's, and the second prompt if Claude Code renders
    # the repository's status again within its system text, as 2.1.197 does when it resumes.
    report_run(
        assert_exact(setup.generations, new=2 + (_system_text(before) != _system_text(after)))
    )


@pytest.mark.harness
@pytest.mark.timeout(300)
def test_claude_code_codes_with_earlier_reasoning_dropped(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    """This model's template opens each reasoning span, and drops those before the last prompt."""
    setup = server_setup(tmp_path / "server", QWEN3_5)
    before, after = _codes_and_commits(setup, sandbox)
    for one, has_reasoning in ((before, True), (after, False)):
        assert "I write the table." in one.text
        assert ("I write it in one go." in one.text) is has_reasoning
    report_run(assert_exact(setup.generations, new=3))


def _codes(setup: ServerSetup, sandbox: Sandbox, url: str) -> list[Row]:
    """Run the task to its end."""
    run = claude(sandbox, url, TASK)
    assert run.result == "The table is written, and its tests pass: ✓"
    assert run.failed == []
    assert run.tools == TOOLS.split()
    assert _files(sandbox.work) == project_files()
    assert max(len(one.output) for one in setup.generations) > 4_000
    return assert_exact(
        setup.generations, new=2
    )  # the first of the conversation, and the subagent's


def _codes_and_commits(
    setup: ServerSetup, sandbox: Sandbox
) -> tuple[RecordedGeneration, RecordedGeneration]:
    """Run the task and a second prompt. Return the requests on both sides of it."""
    with setup.server(coding_script(setup.family, sandbox.work)) as server:
        done = len(_codes(setup, sandbox, server.url))
        assert claude(sandbox, server.url, COMMIT, "--continue").result == "Committed."
    assert _git(sandbox, "log", "--format=%s") == "Zahlwörter\nbegin\n"
    assert _git(sandbox, "status", "--short") == ""
    return setup.generations[done - 1], setup.generations[done]


def _system_text(one: RecordedGeneration) -> str:
    return one.text.partition("<|im_end|>")[0]


def _files(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes().decode() for path in paths}


def _git(sandbox: Sandbox, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=sandbox.work, capture_output=True, text=True, check=True
    )
    return done.stdout
