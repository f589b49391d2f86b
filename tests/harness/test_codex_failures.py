"""The engine fails in the middle of the real Codex's work, and the task still succeeds."""

import re
from pathlib import Path
from typing import Any

import pytest
from client_sandbox import Sandbox
from codex_project import adds
from codex_runs import codex, has_template
from prefix_exactness import ReportRun, assert_exact
from server_setup import QWEN3_CODER, call, server_setup, text, think, turns

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

TEXT = "".join(f"Zeile {at}: grüße 👋\n" for at in range(20))
DONE = "Written, trotz allem."

TURNS = turns(
    QWEN3_CODER,
    [think("I look."), call("exec_command", cmd="echo begun >> log.txt; ls -A")],
    [think("I write all of it."), call("apply_patch", input=adds("grüße.txt", TEXT))],
    [think("Once."), call("exec_command", cmd="echo once >> log.txt")],
    [think("Done."), text(DONE)],
)
AFTER_A_CALL = turns(
    QWEN3_CODER,
    [
        think("I write all of it."),
        call("apply_patch", input=adds("grüße.txt", TEXT)),
        think("hm " * 300),
    ],
)[0]


def _fails(turn: dict[str, Any], after: int, kind: str = "engine") -> dict[str, Any]:
    return {**turn, "fail": {"after": after, "kind": kind}}


FAILURES: dict[str, tuple[list[dict[str, Any]], list[int]]] = {
    "before any output": ([_fails(TURNS[1], 0), *TURNS[1:]], [0, 1, 2, 3]),
    "overloaded": ([_fails(TURNS[1], 0, "overloaded"), *TURNS[1:]], [0, 1, 2, 3]),
    "unavailable": ([_fails(TURNS[1], 0, "unavailable"), *TURNS[1:]], [0, 1, 2, 3]),
    "in reasoning": ([_fails(TURNS[1], 4), *TURNS[1:]], [0, 0, 2, 3]),
    "at a call": ([_fails(TURNS[1], 13), *TURNS[1:]], [0, 0, 2, 3]),
    # Codex stores complete reasoning and drops the call. The model continues after the reasoning.
    "in a call": ([_fails(TURNS[1], 90), *TURNS[1:]], [0, 0, 2, 3]),
    "in a call, overloaded": ([_fails(TURNS[1], 90, "overloaded"), *TURNS[1:]], [0, 0, 2, 3]),
    # A complete call exists: Codex continues with its result, and drops incomplete reasoning.
    "after a call": ([_fails(AFTER_A_CALL, 400), *TURNS[2:]], [0, 0, 2]),
}
"""The rest of the script, and which request each request but the first continues."""


@pytest.mark.parametrize(("script", "sources"), FAILURES.values(), ids=FAILURES)
def test_codex_continues_after_a_failure(
    sandbox: Sandbox,
    tmp_path: Path,
    report_run: ReportRun,
    script: list[dict[str, Any]],
    sources: list[int],
) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    continues = ("--engine-option", "continues=true")  # from a prefix of the response, as models do
    with setup.server({"turns": [TURNS[0], *script]}, *continues) as server:
        run = codex(sandbox, server.url, "Write the greetings.")
        assert re.findall(r" error=(\w+)", server.log.read_text()) != []
    assert run.result == DONE
    changed = [item for item in run.items if item["type"] == "file_change"]
    assert [item["status"] for item in changed] == ["completed"]  # and only once
    assert (sandbox.work / "grüße.txt").read_bytes() == TEXT.encode()
    assert (sandbox.work / "log.txt").read_text() == "begun\nonce\n"
    found = assert_exact(setup.generations, new=1)
    if has_template(QWEN3_CODER):  # the tokenizer's own template has another notation for calls
        assert [row.source for row in found[1:]] == sources
    report_run(found)
