"""Names with slashes, as gateways give them to models, in the real Codex."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from codex_greeting import DONE, FILE, TASK, TEXT, greeting
from codex_runs import codex
from exactness import Row, was_exact
from recording_frontend import front_of
from sandbox import Sandbox
from stage import QWEN3_CODER, stage

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "name", ["openai/openai/gpt-5.5", "some-org/öffentlich/Model_1.5:fast"], ids=["plain", "odd"]
)
def test_codex_knows_a_model_by_a_name_with_slashes(
    place: Sandbox, tmp_path: Path, tell: Callable[[Sequence[Row]], None], name: str
) -> None:
    scene = stage(tmp_path / "stage", QWEN3_CODER)
    named = ("--served-model-name", name)
    script = {"turns": greeting(QWEN3_CODER)}
    with scene.server(script, *named) as server, front_of(server.url) as front:
        told = codex(place, front.url, TASK, flags=("--model", name))
    assert told.result == DONE
    assert told.errors == []  # of a name that it does not know it warns
    assert "metadata" not in told.err
    asked = front.bodies("/v1/responses")
    assert {body["model"] for body in asked} == {name}
    # Only a model of the catalog has this tool.
    assert {"custom"} == {
        tool["type"] for tool in asked[0]["tools"] if tool.get("name") == "apply_patch"
    }
    assert (place.work / FILE).read_bytes() == TEXT.encode()
    tell(was_exact(scene.heard, new=1))
