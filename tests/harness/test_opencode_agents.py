"""The real OpenCode switches from its plan agent to its build agent within a session.

It writes a reminder of the mode behind the newest message of the user and removes it from the
earlier ones, and the definition of its tool `task` depends on the agent. Neither changes the
prefix.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from client_sandbox import Sandbox
from prefix_exactness import ReportRun, assert_exact
from server_setup import QWEN3_CODER, call, server_setup, text, think, turns
from small_task import assert_ended_well
from tool_loops import find_loop_steps

from dovetail_model import OutputBlock

#: It would wait for its list of models from the network.
OFFLINE = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
#: The prompt of the request that names a new session, in parallel with its first turn.
TITLE = "You are a title generator"
FAMILY = QWEN3_CODER


#: Each run of the client: its agent, its prompt and the last text of the model.
RUNS = (
    ("plan", "Plan a file.", "My plan: a file."),
    ("plan", "A better plan.", "Better: two files."),
    ("build", "Do it.", "Both are written."),
    ("build", "Again.", "Written again."),
)


@pytest.mark.harness
@pytest.mark.timeout(400)
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize(
    "servers", [[(0, 1, 2, 3)], [(0,), (1, 2), (3,)]], ids=["one", "restarted"]
)
def test_opencode_switches_agents(
    api: str,
    servers: Sequence[Sequence[int]],
    sandbox: Sandbox,
    tmp_path: Path,
    report_run: ReportRun,
) -> None:
    """Each server gets the runs with these numbers."""
    setup, cold = server_setup(tmp_path / "server", FAMILY), []
    rules = [{"when": {"text": TITLE}, "text": FAMILY.spell(text("A file"))}]
    for runs in servers:
        cold.append(1 + 2 * runs[0] if runs[0] else 0)  # a title, and two turns of each run
        script = turns(FAMILY, *(blocks for at in runs for blocks in _outputs(at)))
        with setup.server({"rules": rules, "turns": script, "end": "fail"}) as server:
            for at in runs:
                agent, prompt, reply = RUNS[at]
                more = ("--continue",) if at else ()
                command = ("run", "--auto", *more, "--agent", agent, prompt)
                flags = ("--api", api)
                ran = sandbox.run("opencode", server.url, *command, flags=flags, **OFFLINE)
                assert_ended_well(ran, reply)
    report_run(assert_exact(setup.generations, new=2, cold=cold))  # the title and the session
    steps = find_loop_steps(setup.generations, FAMILY)
    assert [step.reprefilled for step in steps] == [0] * len(RUNS)


def _outputs(number: int) -> Sequence[Sequence[OutputBlock]]:
    """Return the turns of a run: the model looks around, then replies."""
    command = call("bash", command=f"echo {number}", description="Does it")
    return [think(f"I look, {number}."), command], [think("That is all."), text(RUNS[number][-1])]
