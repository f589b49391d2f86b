"""A session of the real Codex goes on after the server was started anew."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from codex_greeting import DONE, FILE, TASK, TEXT, THOUGHTS, greeting
from codex_runs import codex, codex_again, template_at_hand
from exactness import Row, was_exact
from sandbox import Sandbox
from stage import QWEN3_CODER, Stage, call, say, stage, think, turns

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

Tell = Callable[[Sequence[Row]], None]
MORE = "Does it still greet?"
STILL = "It still does: grüße."


@pytest.fixture
def scene(place: Sandbox, tmp_path: Path) -> Stage:
    """A session that has ended, and so has its server."""
    # The template keeps thoughts where a new question comes: they can be looked for then.
    if not template_at_hand(QWEN3_CODER):
        pytest.skip(f"no template {QWEN3_CODER.template} at hand: set DOVETAIL_TEMPLATES")
    scene = stage(tmp_path / "stage", QWEN3_CODER)
    first, *others = greeting(QWEN3_CODER)
    between = "</tool_call><think>"
    assert between in first["text"]
    # No client keeps such blank lines. Where they are found again, they came from the server.
    odd = {**first, "text": first["text"].replace(between, "</tool_call>\n\n\n\n<think>")}
    with scene.server({"turns": [odd, *others]}) as server:
        assert codex(place, server.url, TASK).result == DONE
    return scene


def test_codex_resumes_exactly_with_the_store_kept(
    place: Sandbox, scene: Stage, tell: Tell
) -> None:
    _go_on(place, scene)
    tell(was_exact(scene.heard, new=1, cold=[5]))


def test_codex_resumes_in_order_with_only_the_seal_key_kept(
    place: Sandbox, scene: Stage, tell: Tell
) -> None:
    for path in scene.data.glob("*.sqlite*"):
        path.unlink()
    assert [path.name for path in scene.data.iterdir()] == ["seal.key"]
    _go_on(place, scene)
    resumed = scene.heard[5]
    places = [resumed.text.index(one.output_text) for one in scene.heard[:5]]
    assert places == sorted(places)
    thoughts = [resumed.text.index(thought) for thought in THOUGHTS]
    assert thoughts == sorted(thoughts)
    tell(was_exact(scene.heard, new=1, cold=[5]))  # all of it was sealed, and found to the token


def _go_on(place: Sandbox, scene: Stage) -> None:
    """A new server, a new question in the old session."""
    script = turns(
        QWEN3_CODER,
        [think("I look."), call("exec_command", cmd=f"cat {FILE}")],
        [think("Yes."), say(STILL)],
    )
    with scene.server({"turns": script}) as server:
        told = codex_again(place, server.url, MORE)
    assert told.result == STILL
    shown = [item for item in told.items if item["type"] == "command_execution"]
    assert [item["aggregated_output"] for item in shown] == [TEXT]
    assert len(scene.heard) == 7
