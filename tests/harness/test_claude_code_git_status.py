"""The real Claude Code resumes a session in a repository whose state has changed.

Version 2.1.197 writes the state into its system text, and renews it when it resumes: the model
still reads the earlier text in its place, and the new one at the end. Version 2.1.325 has it in an
inline message, which it does not change.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from claude_code import claude
from client_sandbox import PROGRAMS, Sandbox
from prefix_exactness import ReportRun, assert_exact
from server_setup import QWEN3_CODER, call, server_setup, text, think, turns
from tool_loops import find_loop_steps

from dovetail.launch.client_version import find_version
from dovetail_model import OutputBlock

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

FAMILY = QWEN3_CODER
OUTPUTS: Sequence[Sequence[Sequence[OutputBlock]]] = (
    (
        [think("I write."), call("Bash", command="echo eins > new.txt", description="Write")],
        [think("That is all."), text("Written.")],
    ),
    (
        [think("I read."), call("Bash", command="cat new.txt", description="Read")],
        [think("It is one word."), text("It is eins.")],
    ),
    ([think("Nothing to do."), text("Unchanged.")],),
)


PROMPTS = ("Write a file.", "Read it.", "Again.")
RESULTS = ("Written.", "It is eins.", "Unchanged.")


@pytest.mark.parametrize("servers", [[(0, 1, 2)], [(0,), (1,), (2,)]], ids=["one", "restarted"])
def test_git_status_on_resume_keeps_the_prefix(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun, servers: Sequence[Sequence[int]]
) -> None:
    """Each server gets the prompts with these numbers."""
    setup = server_setup(tmp_path / "server", FAMILY)
    session, cold = "", []
    for prompts in servers:
        cold.append(2 * prompts[0])
        script = turns(FAMILY, *(blocks for at in prompts for blocks in OUTPUTS[at]))
        with setup.server({"turns": script, "end": "fail"}) as server:
            for at in prompts:
                more = ("--resume", session) if session else ()
                run = claude(sandbox, server.url, PROMPTS[at], *more)
                assert run.result == RESULTS[at]
                session = run.session
                _change_repository(sandbox.work, at)
    version = find_version(str(PROGRAMS / "claude"))
    if version is not None and version < (2, 1, 300):
        last = setup.generations[-1].text
        assert last.count("Current branch: main") == 1
        assert last.count("Current branch: other") == 2
        assert last.count("?? third.txt") == 1
    report_run(assert_exact(setup.generations, new=1, cold=cold))
    steps = find_loop_steps(setup.generations, FAMILY)
    assert [step.reprefilled for step in steps] == [0, 0]


def _change_repository(work: Path, number: int) -> None:
    """Change the repository after the prompt with this number."""
    if number == 0:
        subprocess.run(["git", "checkout", "-q", "-b", "other"], cwd=work, check=True)
    elif number == 1:
        (work / "third.txt").write_text("drei")
