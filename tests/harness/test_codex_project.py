"""The real Codex builds a small project with a model in Kimi's notation, then in gpt-oss's.

All tools are real: commands run, patches are applied, a sub-agent writes the tests.
"""

from pathlib import Path

import pytest
from client_sandbox import Sandbox
from codex_project import RUN_TESTS, SHOUTS, TAKES_LEAVE, check_project
from codex_project_scripts import AGENT_TASK, DONE, LEAVES, MORE, TASK, gpt_oss, kimi
from codex_runs import AGENTS, PLANS, CodexRun, codex, codex_resume
from prefix_exactness import ReportRun, assert_exact
from server_setup import GPT_OSS, KIMI, ServerSetup, server_setup

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

LONG = 4_000  # minimum tokens of a call


def test_codex_builds_a_project_with_an_agent_on_kimi(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", KIMI)
    with setup.server(kimi()) as server:
        run = codex(sandbox, server.url, TASK, *PLANS, *AGENTS)
        assert run.result == DONE
        _worked(run)
        assert run.messages == ["I begin with the module.", DONE]
        check_project(sandbox.work, SHOUTS)
        _codes(run, [0, 0, 0, 0, 0, 1, 0, 0])
        again = codex_resume(sandbox, server.url, MORE, *PLANS, *AGENTS)
        assert again.result == LEAVES
        _worked(again)
        check_project(sandbox.work, TAKES_LEAVE)
    _check_agent_messages(setup)
    _wrote_long(setup)
    # Two new prompts: the task and the agent. With a new question Kimi's template drops all earlier
    # reasoning: that is the model's own policy, and everything after it is computed again.
    report_run(assert_exact(setup.generations, new=2, again=1))


def test_codex_builds_a_project_on_gpt_oss(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", GPT_OSS)
    with setup.server(gpt_oss()) as server:
        run = codex(sandbox, server.url, TASK, *PLANS)
        assert run.result == DONE
        _worked(run)
        check_project(sandbox.work, SHOUTS)
        _codes(run, [0, 0])
        again = codex_resume(sandbox, server.url, MORE, *PLANS)
        assert again.result == LEAVES
        _worked(again)
        check_project(sandbox.work, TAKES_LEAVE)
    _wrote_long(setup)
    report_run(
        assert_exact(setup.generations, new=1, again=1)
    )  # as with Kimi: a new question drops earlier reasoning


def _worked(run: CodexRun) -> None:
    """Check that no tool was rejected and no patch failed; commands may fail."""
    assert run.errors == []
    assert [item for item in run.failed if item["type"] != "command_execution"] == []


def _codes(run: CodexRun, expected: list[int]) -> None:
    """Check the exit codes of the commands; the tests are among them and pass in the end."""
    commands = [item for item in run.items if item["type"] == "command_execution"]
    assert [item["exit_code"] for item in commands] == expected
    tests = [item for item in commands if RUN_TESTS in item["command"]]
    assert tests[-1]["aggregated_output"].rstrip().endswith("OK")
    plans = [item for item in run.items if item["type"] == "todo_list"]
    assert [step["text"] for step in plans[-1]["items"]] == ["Modul", "Tests"]


def _check_agent_messages(setup: ServerSetup) -> None:
    agent = [one for one in setup.generations if TASK not in one.text]
    assert len(agent) == 3
    assert all(AGENT_TASK in one.text for one in agent)
    reply = "Payload:\nThe tests lie in test_phrasebook.py."
    assert any(reply in one.text for one in setup.generations if TASK in one.text)


def _wrote_long(setup: ServerSetup) -> None:
    assert max(len(one.output) for one in setup.generations) >= LONG
