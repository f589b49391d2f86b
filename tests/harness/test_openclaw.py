"""The real OpenClaw over the three APIs: a task with its tools, and a question afterwards.

It ends each request with a context of its own (what runs, which subagents there are), which it
takes away again when there is more to say. So the client changes history: what came before that
context is kept, and the turns behind it are computed anew, though they are the model's own tokens.
Over Responses the context stays where it was for the whole task and moves with the next question.
"""

import json
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from exactness import BLOCK, Row, rows, table, was_exact
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
)
from stage import GPT_OSS, KIMI, QWEN3_CODER, Family, stage

from dovetail.engines.scripted.generation_log import RecordedGeneration

Tell = Callable[[Sequence[Row]], None]
#: Tokens of its context, and of the heads of the message that it is in and of the answer.
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
    api: str, family: Family, place: Sandbox, tmp_path: Path, tell: Tell
) -> None:
    where = stage(tmp_path / "stage", family)
    with where.server({"turns": small_task(family, TOOLS), "end": "fail"}) as server:
        command = ("agent", "exec", "--json", "--cwd", str(place.work), TASK)
        ran = place.run("openclaw", server.url, *command, flags=("--api", api))
    ended_well(ran, DONE)
    assert json.loads(ran.out)["toolSummary"]["failures"] == 0
    assert files_of(place.work) == FILES
    assert len(where.heard) == 4
    for before, after in pairwise(where.heard):
        _goes_on_behind_its_context(before, after)
    tell(rows(where.heard))


@pytest.mark.harness
@pytest.mark.timeout(500)
def test_openclaw_is_asked_again(place: Sandbox, tmp_path: Path, tell: Tell) -> None:
    where = stage(tmp_path / "stage", GPT_OSS)
    with where.server({"turns": small_task(GPT_OSS, TOOLS), "end": "fail"}) as server:
        for text, answer in ((TASK, DONE), (QUESTION, ANSWER)):
            command = ("agent", "--local", "--session-id", "one", "--message", text)
            ran = place.run("openclaw", server.url, *command, flags=("--api", "responses"))
            ended_well(ran, answer)
    workplace = next(place.folder.rglob("greeting.txt")).parent  # in the folder of its state
    assert files_of(workplace) == FILES
    heard = where.heard
    assert len(heard) == 8
    # The question begins anew: the context has gone from the task to the question.
    found = was_exact(heard, new=2)
    assert [at for at, row in enumerate(found) if row.kind == "new"] == [0, 6]
    _kept_up_to_context(heard[0], heard[6])
    tell(found)


def _goes_on_behind_its_context(before: RecordedGeneration, after: RecordedGeneration) -> None:
    """All up to the context is kept, and the model's turn is in the next prompt to the token."""
    _kept_up_to_context(before, after)
    said = array("I", before.output[:-1])  # the token that ended the turn may be the template's
    assert said.tobytes() in array("I", after.prompt).tobytes(), table(rows([before, after]))


def _kept_up_to_context(before: RecordedGeneration, after: RecordedGeneration) -> None:
    row = rows([before, after])[1]
    assert row.kept >= len(before.prompt) - MOVED, table([row])
    assert row.cached >= row.kept - row.kept % BLOCK - BLOCK, table([row])
