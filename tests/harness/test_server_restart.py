"""The server is replaced under a real agent: stopped, drained, and started again.

The agent sends its next turn while the old server still finishes another client's response. It
gets an error to retry, and reaches the new server at the old address.
"""

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from claude_code import HEADLESS as CLAUDE
from client_sandbox import Sandbox
from codex_runs import HEADLESS as CODEX
from prefix_exactness import ReportRun, assert_exact
from server_process import TIMEOUT_SECONDS, Running, free_port
from server_setup import MODEL, QWEN3_CODER, call, server_setup, text, think, turns

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

WAIT = "touch began; while [ ! -e go ]; do sleep 0.1; done; echo gone on"
DONE = "All of it is done."
CALLS = {
    "claude": call("Bash", command=WAIT, description="Wait"),
    "codex": call("exec_command", cmd=WAIT, yield_time_ms=30_000),
}
ARGUMENTS = {"claude": ("-p", "Wait.", *CLAUDE), "codex": ("exec", *CODEX, "Wait.")}


@pytest.mark.parametrize("agent", list(CALLS))
def test_agent_reconnects_to_the_new_server(
    agent: str, sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    waiting, done = turns(QWEN3_CODER, [think("I wait."), CALLS[agent]], [text(DONE)])
    script = {
        "rules": [
            {"when": {"text": "the other client", "tail": 300}, "text": "Hm", "hang": 1},
            {"when": {"text": "gone on", "tail": 600}, **done},
        ],
        "turns": [waiting],
    }
    port = ("--http-port", str(free_port()))
    with setup.server(script, *port) as old:
        with sandbox.start(agent, old.url, *ARGUMENTS[agent]) as client:
            with _other_client(old):
                _until(lambda: (sandbox.work / "began").exists(), old)
                old.process.send_signal(signal.SIGTERM)
                _until(lambda: old.request("GET", "/ready").status == 503, old)
                (sandbox.work / "go").touch()
                _until(lambda: _was_rejected(old), old)
            assert old.process.wait(TIMEOUT_SECONDS) == -signal.SIGTERM
            with setup.server(script, *port):
                out, err = client.communicate(timeout=TIMEOUT_SECONDS)
        assert client.returncode == 0, f"{out[-3000:]} {err[-3000:]}"
    assert DONE in out
    generations = [one for one in setup.generations if "the other client" not in one.output_text]
    report_run(
        assert_exact([one for one in generations if len(one.prompt) > 1_000], new=1, cold=[1])
    )


@contextmanager
def _other_client(server: Running) -> Iterator[None]:
    """A response that does not end before its client disconnects."""
    messages = [{"role": "user", "content": "I am the other client."}]
    body = {"model": MODEL, "messages": messages, "stream": True}
    with server.open("POST", "/v1/chat/completions", body) as response:
        assert response.read1()
        yield


def _was_rejected(server: Running) -> bool:
    """Return whether the agent's request has been rejected with a retry."""
    lines = re.findall(r"endpoint=(messages|responses) status=503", server.log.read_text())
    return bool(lines)


def _until(is_so: Callable[[], bool], server: Running) -> None:
    """Wait for a condition; on timeout show the log."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while not is_so():
        assert time.monotonic() < end, server.log.read_text()[-5000:]
        time.sleep(0.05)
