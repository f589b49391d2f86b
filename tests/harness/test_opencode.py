"""The real OpenCode with its two APIs: a task with its tools, then a question in the session."""

from pathlib import Path

import pytest
from client_sandbox import Sandbox
from prefix_exactness import ReportRun
from server_setup import GPT_OSS, KIMI, Family, call, server_setup, text
from small_task import (
    DONE,
    FILES,
    QUESTION,
    QUESTION_REPLY,
    TASK,
    Tools,
    assert_ended_well,
    assert_task_exact,
    read_files,
    small_task,
)

#: It would wait for its list of models from the network.
OFFLINE = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
#: The prompt of the request that names a new session, in parallel with its first turn.
TITLE = "You are a title generator"


@pytest.mark.harness
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("api", "family"),
    [("chat", GPT_OSS), ("responses", KIMI)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_opencode_does_a_task(
    api: str, family: Family, sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup, flags = server_setup(tmp_path / "server", family), ("--api", api)
    script = {
        "rules": [{"when": {"text": TITLE}, "text": family.spell(text("Greetings"))}],
        "turns": small_task(family, _tools(sandbox.work)),
        "end": "fail",
    }
    with setup.server(script) as server:
        ran = sandbox.run("opencode", server.url, "run", "--auto", TASK, flags=flags, **OFFLINE)
        assert_ended_well(ran, DONE)
        assert read_files(sandbox.work) == FILES

        again = ("run", "--auto", "--continue", QUESTION)
        ran = sandbox.run("opencode", server.url, *again, flags=flags, **OFFLINE)
        assert_ended_well(ran, QUESTION_REPLY)
    report_run(assert_task_exact(setup, titles=1))


def _tools(work: Path) -> Tools:
    """Its files are named by absolute paths."""
    return Tools(
        shell=lambda command: call("bash", command=command, description="Does it"),
        write=lambda path, content: call("write", filePath=str(work / path), content=content),
        read=lambda path: call("read", filePath=str(work / path)),
        edit=lambda path, old, new: call(
            "edit", filePath=str(work / path), oldString=old, newString=new
        ),
    )
