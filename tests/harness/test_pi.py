"""The real Pi over the three APIs: a task with its tools, then a question in the same session."""

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
    ended_well,
    files_of,
    pi_tools,
    small_task,
    task_was_exact,
)
from stage import GPT_OSS, KIMI, QWEN3_CODER, Family, stage


@pytest.mark.harness
@pytest.mark.parametrize(
    ("api", "family"),
    [("chat", KIMI), ("responses", QWEN3_CODER), ("messages", GPT_OSS)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_pi_does_a_task(
    api: str, family: Family, place: Sandbox, tmp_path: Path, tell: Callable[[Sequence[Row]], None]
) -> None:
    where, flags = stage(tmp_path / "stage", family), ("--api", api)
    with where.server({"turns": small_task(family, pi_tools("bash")), "end": "fail"}) as server:
        # Without a network it would wait for what it looks up at the start.
        ran = place.run("pi", server.url, "-p", TASK, flags=flags, PI_OFFLINE="1")
        ended_well(ran, DONE)
        assert files_of(place.work) == FILES

        ran = place.run("pi", server.url, "-c", "-p", QUESTION, flags=flags, PI_OFFLINE="1")
        ended_well(ran, ANSWER)
    tell(task_was_exact(where))
