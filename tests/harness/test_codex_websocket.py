"""The real Codex over a WebSocket: one connection, only new items per message, exact prefixes."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from client_sandbox import Sandbox
from codex_greeting_task import DONE, FILE, TASK, TEXT, greeting_turns
from codex_project import SHOUTS, TAKES_LEAVE, check_project
from codex_project_scripts import AGENT_TASK, LEAVES, MORE, kimi
from codex_project_scripts import DONE as BUILT
from codex_project_scripts import TASK as PROJECT
from codex_runs import AGENTS, PLANS, CodexRun, codex, codex_resume
from prefix_exactness import ReportRun, assert_exact
from server_process import Running, free_port
from server_setup import (
    KIMI,
    QWEN3_CODER,
    Family,
    ServerSetup,
    call,
    server_setup,
    text,
    think,
    turns,
)

from dovetail.engines.scripted.engine import RecordedGeneration
from dovetail_model import OutputBlock

SOCKETS = ("--api", "websocket")
WINDOW = 18_000  # Codex's own prompt takes a third of it
COMPACTION = "CONTEXT CHECKPOINT COMPACTION"
STEPS = "Take all steps."
SUMMARY = "Three steps are taken, für alle."
WAIT = "Wait for me."


def test_codex_writes_a_file_over_a_socket(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    with setup.server(_greets(QWEN3_CODER)) as server:
        run = codex(sandbox, server.url, TASK, flags=SOCKETS)
        log = _responses(server)
    _wrote(run, sandbox)
    # One socket, the initial warm-up of Codex, and one message for each of five turns.
    assert log == Counter({("websocket", 101): 1, ("websocket", 200): 6})
    generations = _turns(setup)
    report_run(assert_exact(generations, new=1))
    assert len(generations) == 5


def test_codex_continues_over_http_if_websockets_are_disabled(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    with setup.server(_greets(QWEN3_CODER), "--no-enable-responses-websocket") as server:
        run = codex(sandbox, server.url, TASK, flags=SOCKETS)
        log = _responses(server)
    _wrote(run, sandbox)
    assert log == Counter({("http", 426): 1, ("http", 200): 5})
    report_run(assert_exact(_turns(setup), new=1))


@pytest.mark.harness
@pytest.mark.timeout(300)
def test_codex_builds_a_project_with_an_agent_over_sockets(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", KIMI)
    with setup.server(_builds()) as server:
        run = codex(sandbox, server.url, PROJECT, *PLANS, *AGENTS, flags=SOCKETS)
        assert (run.result, run.errors) == (BUILT, [])
        check_project(sandbox.work, SHOUTS)
        again = codex_resume(sandbox, server.url, MORE, *PLANS, *AGENTS, flags=SOCKETS)
        assert (again.result, again.errors) == (LEAVES, [])
        check_project(sandbox.work, TAKES_LEAVE)
        log = _responses(server)
    assert log == Counter({("websocket", 101): 3, ("websocket", 200): 15 + 3})
    generations = [
        one for one in setup.generations if PROJECT in one.text or AGENT_TASK in one.text
    ]
    report_run(assert_exact(generations, new=2, again=1))  # as over HTTP: see test_codex_project.py


@pytest.mark.harness
@pytest.mark.timeout(300)
def test_codex_compacts_over_a_socket(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER, window=WINDOW)
    steps: list[list[OutputBlock]] = [
        [think(f"Step {at}."), call("exec_command", cmd=f"echo {at} >> steps.txt; seq 1 950")]
        for at in range(4)
    ]
    (summary,) = turns(QWEN3_CODER, [text(SUMMARY)])
    rules = [
        {"when": {"text": COMPACTION, "tail": 3000}, **summary},
        {"when": {"text": STEPS}, "turns": turns(QWEN3_CODER, *steps, [text("All are taken.")])},
    ]
    with setup.server({"rules": rules, "turns": turns(QWEN3_CODER, [])}) as server:
        run = codex(sandbox, server.url, STEPS, flags=SOCKETS)
        log = _responses(server)
    assert (run.result, run.errors) == ("All are taken.", [])
    assert (sandbox.work / "steps.txt").read_text() == "0\n1\n2\n3\n"
    # Codex requests the summary over a separate socket.
    assert log == Counter({("websocket", 101): 2, ("websocket", 200): 7})
    report_run(assert_exact([one for one in setup.generations if STEPS in one.text], new=2))


@pytest.mark.harness
@pytest.mark.timeout(300)
def test_codex_continues_after_a_server_restart(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    """The state of the old socket is gone: Codex sends all items, the ledger knows the turns."""
    setup, port = server_setup(tmp_path / "server", QWEN3_CODER), str(free_port())
    wait = "touch began; until [ -e goes-on ]; do sleep 0.1; done"
    steps: list[list[OutputBlock]] = [
        [think("I wait."), call("exec_command", cmd=wait, yield_time_ms=60_000)],
        [think("Once more."), call("exec_command", cmd="echo again")],
        [think("Done."), text("All is done.")],
    ]
    with ThreadPoolExecutor(1) as aside:
        with setup.server(_waits(steps), "--http-port", port) as server:
            running = aside.submit(codex, sandbox, server.url, WAIT, flags=SOCKETS)
            while not (sandbox.work / "began").exists():
                assert not running.done(), running.result()
                time.sleep(0.05)
        with setup.server(_waits(steps[1:]), "--http-port", port) as server:
            (sandbox.work / "goes-on").touch()
            run = running.result()
            log = _responses(server)
    assert run.result == "All is done."
    assert log == Counter({("websocket", 101): 1, ("websocket", 200): 2})
    generations = [one for one in setup.generations if WAIT in one.text]
    report_run(assert_exact(generations, new=1, cold=(1,)))


def _waits(steps: list[list[OutputBlock]]) -> dict[str, Any]:
    task = {"when": {"text": WAIT}, "turns": turns(QWEN3_CODER, *steps)}
    return {"rules": [task], "turns": turns(QWEN3_CODER, [])}


def _greets(family: Family) -> dict[str, Any]:
    """Return the turns of the task, without the warm-up before the task is known."""
    task = {"when": {"text": TASK}, "turns": greeting_turns(family)}
    return {"rules": [task], "turns": turns(family, [])}


def _builds() -> dict[str, Any]:
    script = kimi()
    agent = {"when": {"text": AGENT_TASK}, "turns": script["turns"]}
    return {"rules": [*script["rules"], agent], "turns": turns(KIMI, [])}


def _turns(setup: ServerSetup) -> list[RecordedGeneration]:
    """Return the requests of the task, without the warm-up."""
    return [one for one in setup.generations if TASK in one.text]


def _responses(server: Running) -> "Counter[tuple[str, int]]":
    """Count the responses by transport and status."""
    found: Counter[tuple[str, int]] = Counter()
    for line in server.log.read_text().splitlines():
        fields = dict(part.split("=", 1) for part in line.split(" ") if "=" in part)
        if fields.get("endpoint") == "responses":
            found[fields.get("transport", "http"), int(fields["status"])] += 1
    return found


def _wrote(run: CodexRun, sandbox: Sandbox) -> None:
    assert run.result == DONE
    assert (run.errors, run.failed) == ([], [])
    assert (sandbox.work / FILE).read_bytes() == TEXT.encode()
