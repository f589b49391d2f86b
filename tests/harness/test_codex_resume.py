"""A session of the real Codex continues after a restart of the server."""

from pathlib import Path

import pytest
from client_sandbox import Sandbox
from codex_greeting_task import DONE, FILE, REASONING, TASK, TEXT, greeting_turns
from codex_runs import codex, codex_resume, has_template
from prefix_exactness import ReportRun, assert_exact
from server_setup import QWEN3_CODER, ServerSetup, call, server_setup, text, think, turns

from dovetail.ledger.sqlite_store import POSITION_FILE

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

MORE = "Does it still greet?"
STILL = "It still does: grüße."


@pytest.fixture
def setup(sandbox: Sandbox, tmp_path: Path) -> ServerSetup:
    """Return a session that has ended, like its server."""
    # This template retains reasoning after a new question, so that it can be checked.
    if not has_template(QWEN3_CODER):
        pytest.skip(f"no template {QWEN3_CODER.template} at hand: set DOVETAIL_TEMPLATES")
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    first, *others = greeting_turns(QWEN3_CODER)
    between = "</tool_call><think>"
    assert between in first["text"]
    # No client retains such blank lines. If they are restored, they came from the server.
    odd = {**first, "text": first["text"].replace(between, "</tool_call>\n\n\n\n<think>")}
    with setup.server({"turns": [odd, *others]}) as server:
        assert codex(sandbox, server.url, TASK).result == DONE
    return setup


def test_codex_resumes_exactly_with_the_store(
    sandbox: Sandbox, setup: ServerSetup, report_run: ReportRun
) -> None:
    _continue_session(sandbox, setup)
    report_run(assert_exact(setup.generations, new=1, cold=[5]))


def test_codex_resumes_in_order_with_only_the_seal_key(
    sandbox: Sandbox, setup: ServerSetup, report_run: ReportRun
) -> None:
    for path in setup.data.glob("*.sqlite*"):
        path.unlink()
    (setup.data / POSITION_FILE).unlink()
    assert [path.name for path in setup.data.iterdir()] == ["seal.key"]
    _continue_session(sandbox, setup)
    resumed = setup.generations[5]
    places = [resumed.text.index(one.output_text) for one in setup.generations[:5]]
    assert places == sorted(places)
    positions = [resumed.text.index(text) for text in REASONING]
    assert positions == sorted(positions)
    report_run(
        assert_exact(setup.generations, new=1, cold=[5])
    )  # all of it was sealed and is restored to the token


def _continue_session(sandbox: Sandbox, setup: ServerSetup) -> None:
    """Start a new server and send a new question in the old session."""
    script = turns(
        QWEN3_CODER,
        [think("I look."), call("exec_command", cmd=f"cat {FILE}")],
        [think("Yes."), text(STILL)],
    )
    with setup.server({"turns": script}) as server:
        run = codex_resume(sandbox, server.url, MORE)
    assert run.result == STILL
    shown = [item for item in run.items if item["type"] == "command_execution"]
    assert [item["aggregated_output"] for item in shown] == [TEXT]
    assert len(setup.generations) == 7
