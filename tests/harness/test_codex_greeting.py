"""The real Codex in a complete tool loop, short enough for the default test run."""

from pathlib import Path

from client_sandbox import Sandbox
from codex_greeting_task import DONE, FILE, TASK, TEXT, greeting_turns
from codex_runs import codex
from prefix_exactness import ReportRun, assert_exact
from server_setup import QWEN3_CODER, assert_refuses_web_pages, server_setup


def test_codex_writes_a_file_on_exact_turns(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    with setup.server({"turns": greeting_turns(QWEN3_CODER)}) as server:
        run = codex(sandbox, server.url, TASK)
        assert_refuses_web_pages(server)
    assert run.result == DONE
    assert (run.errors, run.failed) == ([], [])
    assert [kind for kind in run.kinds if kind != "reasoning"] == [
        *("command_execution", "command_execution"),
        *("file_change", "file_change"),
        *("command_execution", "command_execution"),
    ]
    assert (sandbox.work / FILE).read_bytes() == TEXT.encode()
    report_run(assert_exact(setup.generations, new=1))
