"""The real OpenClaw with the three APIs: a task with its tools, and a question afterwards.

It ends each request with its own context (running processes, available subagents), which it removes
in later requests. The server keeps it where the model read it, so the prefix stays. With Responses
the context stays in place for the task and moves with the next question.
"""

import json
from pathlib import Path

import pytest
from client_sandbox import Sandbox
from prefix_exactness import ReportRun, assert_exact
from server_setup import GPT_OSS, KIMI, QWEN3_CODER, Family, server_setup
from small_task import (
    DONE,
    FILES,
    QUESTION,
    QUESTION_REPLY,
    TASK,
    assert_ended_well,
    pi_tools,
    read_files,
    small_task,
)

TOOLS = pi_tools("exec")


@pytest.mark.harness
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("api", "family"),
    [("chat", QWEN3_CODER), ("messages", KIMI)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_openclaw_does_a_task(
    api: str, family: Family, sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", family)
    with setup.server({"turns": small_task(family, TOOLS), "end": "fail"}) as server:
        command = ("agent", "exec", "--json", "--cwd", str(sandbox.work), TASK)
        ran = sandbox.run("openclaw", server.url, *command, flags=("--api", api))
    assert_ended_well(ran, DONE)
    assert json.loads(ran.out)["toolSummary"]["failures"] == 0
    assert read_files(sandbox.work) == FILES
    assert len(setup.generations) == 4
    report_run(assert_exact(setup.generations, new=1))


@pytest.mark.harness
@pytest.mark.timeout(500)
def test_openclaw_continues_a_session(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", GPT_OSS)
    with setup.server({"turns": small_task(GPT_OSS, TOOLS), "end": "fail"}) as server:
        for text, reply in ((TASK, DONE), (QUESTION, QUESTION_REPLY)):
            command = ("agent", "--local", "--session-id", "one", "--message", text)
            ran = sandbox.run("openclaw", server.url, *command, flags=("--api", "responses"))
            assert_ended_well(ran, reply)
    workplace = next(sandbox.folder.rglob("greeting.txt")).parent  # in the folder of its state
    assert read_files(workplace) == FILES
    generations = setup.generations
    assert len(generations) == 8
    # At the question the template drops the reasoning of the task, which begins after its prompt.
    found = assert_exact(generations, new=1, again=1)
    assert (found[6].kind, found[6].source) == ("again", 0)
    report_run(found)
