"""The real OpenCode over its two APIs: a task with its tools, then a question in the session."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from exactness import Row
from sandbox import Sandbox
from small_task import (
    ANSWER,
    DONE,
    FILES,
    QUESTION,
    TASK,
    Tools,
    ended_well,
    files_of,
    small_task,
    task_was_exact,
)
from stage import GPT_OSS, KIMI, Family, call, say, stage

#: Its list of models comes from the network, for which it would wait.
OFFLINE = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
#: What the model is told that names a new session, beside its first turn.
TITLE = "You are a title generator"


@pytest.mark.harness
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("api", "family"),
    [("chat", GPT_OSS), ("responses", KIMI)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_opencode_does_a_task(
    api: str, family: Family, place: Sandbox, tmp_path: Path, tell: Callable[[Sequence[Row]], None]
) -> None:
    where, flags = stage(tmp_path / "stage", family), ("--api", api)
    script = {
        "rules": [{"when": {"text": TITLE}, "text": family.spell(say("Greetings"))}],
        "turns": small_task(family, _tools(place.work)),
        "end": "fail",
    }
    with where.server(script) as server:
        ran = place.run("opencode", server.url, "run", "--auto", TASK, flags=flags, **OFFLINE)
        ended_well(ran, DONE)
        assert files_of(place.work) == FILES

        again = ("run", "--auto", "--continue", QUESTION)
        ran = place.run("opencode", server.url, *again, flags=flags, **OFFLINE)
        ended_well(ran, ANSWER)
    tell(task_was_exact(where, titles=1))


def _tools(work: Path) -> Tools:
    """Its files are named by whole paths."""
    return Tools(
        shell=lambda command: call("bash", command=command, description="Does it"),
        write=lambda path, content: call("write", filePath=str(work / path), content=content),
        read=lambda path: call("read", filePath=str(work / path)),
        edit=lambda path, old, new: call(
            "edit", filePath=str(work / path), oldString=old, newString=new
        ),
    )
