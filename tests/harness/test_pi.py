"""The real Pi with the three APIs: a task with its tools, then a question in the same session."""

from pathlib import Path

import pytest
from client_sandbox import Sandbox
from prefix_exactness import ReportRun
from server_setup import GPT_OSS, KIMI, QWEN3_CODER, Family, server_setup
from small_task import (
    DONE,
    FILES,
    QUESTION,
    QUESTION_REPLY,
    TASK,
    assert_ended_well,
    assert_task_exact,
    pi_tools,
    read_files,
    small_task,
)


@pytest.mark.harness
@pytest.mark.parametrize(
    ("api", "family"),
    [("chat", KIMI), ("responses", QWEN3_CODER), ("messages", GPT_OSS)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_pi_does_a_task(
    api: str, family: Family, sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup, flags = server_setup(tmp_path / "server", family), ("--api", api)
    with setup.server({"turns": small_task(family, pi_tools("bash")), "end": "fail"}) as server:
        # Without network access it would wait for lookups at the start.
        ran = sandbox.run("pi", server.url, "-p", TASK, flags=flags, PI_OFFLINE="1")
        assert_ended_well(ran, DONE)
        assert read_files(sandbox.work) == FILES

        ran = sandbox.run("pi", server.url, "-c", "-p", QUESTION, flags=flags, PI_OFFLINE="1")
        assert_ended_well(ran, QUESTION_REPLY)
    report_run(assert_task_exact(setup))
