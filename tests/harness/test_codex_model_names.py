"""Model names with slashes, as gateways use them, in the real Codex."""

from pathlib import Path

import pytest
from client_sandbox import Sandbox
from codex_greeting_task import DONE, FILE, TASK, TEXT, greeting_turns
from codex_runs import codex
from prefix_exactness import ReportRun, assert_exact
from recording_frontend import front_of
from server_setup import QWEN3_CODER, server_setup

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "name", ["openai/openai/gpt-5.5", "some-org/öffentlich/Model_1.5:fast"], ids=["plain", "odd"]
)
def test_codex_accepts_a_model_name_with_slashes(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun, name: str
) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    named = ("--served-model-name", name)
    script = {"turns": greeting_turns(QWEN3_CODER)}
    with setup.server(script, *named) as server, front_of(server.url) as front:
        run = codex(sandbox, front.url, TASK, flags=("--model", name))
    assert run.result == DONE
    assert run.errors == []  # it warns about unknown names
    assert "metadata" not in run.err
    bodies = front.bodies("/v1/responses")
    assert {body["model"] for body in bodies} == {name}
    # Only models of the catalog have this tool.
    assert {"custom"} == {
        tool["type"] for tool in bodies[0]["tools"] if tool.get("name") == "apply_patch"
    }
    assert (sandbox.work / FILE).read_bytes() == TEXT.encode()
    report_run(assert_exact(setup.generations, new=1))
