"""The real OpenClaw with the three APIs: a task with its tools, and a question afterwards.

It ends each request with its own context (running processes, available subagents), which it removes
in later requests. The client thus changes the history: the prefix before that context is reused,
and the turns after it are computed again although they are the model's own tokens. With Responses
the context stays in place for the task and moves with the next question.
"""

import json
from array import array
from itertools import pairwise
from pathlib import Path

import pytest
from client_sandbox import Sandbox
from prefix_exactness import BLOCK, ReportRun, assert_exact, classify, table
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

from dovetail.engines.scripted.engine import RecordedGeneration

#: Tokens of its context, and of the headers of the message around it and of the response.
MOVED = 70
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
    for before, after in pairwise(setup.generations):
        _check_continues_after_context(before, after)
    report_run(classify(setup.generations))


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
    # The question is a new prompt: the context has moved from the task to the question.
    found = assert_exact(generations, new=2)
    assert [at for at, row in enumerate(found) if row.kind == "new"] == [0, 6]
    _check_shared_up_to_context(generations[0], generations[6])
    report_run(found)


def _check_continues_after_context(before: RecordedGeneration, after: RecordedGeneration) -> None:
    """Check that all up to the context is reused, and that the next prompt has the model's turn."""
    _check_shared_up_to_context(before, after)
    output = array("I", before.output[:-1])  # the token that ended the turn may be the template's
    assert output.tobytes() in array("I", after.prompt).tobytes(), table(classify([before, after]))


def _check_shared_up_to_context(before: RecordedGeneration, after: RecordedGeneration) -> None:
    row = classify([before, after])[1]
    assert row.shared >= len(before.prompt) - MOVED, table([row])
    assert row.cached >= row.shared - row.shared % BLOCK - BLOCK, table([row])
