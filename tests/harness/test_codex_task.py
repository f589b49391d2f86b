"""The real Codex builds a small project, its model speaking Kimi's notation, then gpt-oss's.

All tools are real: commands run, patches are applied, an agent of its own writes the tests.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from codex_project import RUN_TESTS, SHOUTS, TAKES_LEAVE, check_project
from codex_runs import AGENTS, PLANS, Told, codex, codex_again
from codex_scripts import AGENT_TASK, DONE, LEAVES, MORE, TASK, gpt_oss, kimi
from exactness import Row, was_exact
from sandbox import Sandbox
from stage import GPT_OSS, KIMI, Stage, stage

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

Tell = Callable[[Sequence[Row]], None]
LONG = 4_000  # tokens of a call at least


def test_codex_builds_a_project_with_an_agent_on_kimi(
    place: Sandbox, tmp_path: Path, tell: Tell
) -> None:
    scene = stage(tmp_path / "stage", KIMI)
    with scene.server(kimi()) as server:
        told = codex(place, server.url, TASK, *PLANS, *AGENTS)
        assert told.result == DONE
        _worked(told)
        assert told.said == ["I begin with the module.", DONE]
        check_project(place.work, SHOUTS)
        _codes(told, [0, 0, 0, 0, 0, 1, 0, 0])
        again = codex_again(place, server.url, MORE, *PLANS, *AGENTS)
        assert again.result == LEAVES
        _worked(again)
        check_project(place.work, TAKES_LEAVE)
    _agent_was_told(scene)
    _wrote_long(scene)
    # Two begin: the task and the agent. With a new question Kimi's template drops the thoughts of
    # all that came before: that is the model's own policy, and all behind them is computed again.
    tell(was_exact(scene.heard, new=2, again=1))


def test_codex_builds_a_project_on_gpt_oss(place: Sandbox, tmp_path: Path, tell: Tell) -> None:
    scene = stage(tmp_path / "stage", GPT_OSS)
    with scene.server(gpt_oss()) as server:
        told = codex(place, server.url, TASK, *PLANS)
        assert told.result == DONE
        _worked(told)
        check_project(place.work, SHOUTS)
        _codes(told, [0, 0])
        again = codex_again(place, server.url, MORE, *PLANS)
        assert again.result == LEAVES
        _worked(again)
        check_project(place.work, TAKES_LEAVE)
    _wrote_long(scene)
    tell(was_exact(scene.heard, new=1, again=1))  # as with Kimi: thoughts fall with a new question


def _worked(told: Told) -> None:
    """No tool was refused, no patch failed; a command may."""
    assert told.errors == []
    assert [item for item in told.failed if item["type"] != "command_execution"] == []


def _codes(told: Told, expected: list[int]) -> None:
    """What the commands ended with; the tests ran among them, and passed in the end."""
    commands = [item for item in told.items if item["type"] == "command_execution"]
    assert [item["exit_code"] for item in commands] == expected
    tests = [item for item in commands if RUN_TESTS in item["command"]]
    assert tests[-1]["aggregated_output"].rstrip().endswith("OK")
    plans = [item for item in told.items if item["type"] == "todo_list"]
    assert [step["text"] for step in plans[-1]["items"]] == ["Modul", "Tests"]


def _agent_was_told(scene: Stage) -> None:
    agent = [one for one in scene.heard if TASK not in one.text]
    assert len(agent) == 3
    assert all(AGENT_TASK in one.text for one in agent)
    said = "Payload:\nThe tests lie in test_phrasebook.py."
    assert any(said in one.text for one in scene.heard if TASK in one.text)


def _wrote_long(scene: Stage) -> None:
    assert max(len(one.output) for one in scene.heard) >= LONG
