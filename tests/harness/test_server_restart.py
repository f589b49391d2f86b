"""The server is replaced under a real agent: told to stop, drained, and started anew.

The agent's next turn comes while the old server still finishes somebody else's answer. It is told
to come back, and finds the new server in the old one's place.
"""

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from claude_code import HEADLESS as CLAUDE
from codex_runs import HEADLESS as CODEX
from exactness import Tell, was_exact
from sandbox import Sandbox
from server_process import TIMEOUT_SECONDS, Running, free_port
from stage import MODEL, QWEN3_CODER, call, say, stage, think, turns

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

WAIT = "touch began; while [ ! -e go ]; do sleep 0.1; done; echo gone on"
DONE = "All of it is done."
CALLS = {
    "claude": call("Bash", command=WAIT, description="Wait"),
    "codex": call("exec_command", cmd=WAIT, yield_time_ms=30_000),
}
ASKED = {"claude": ("-p", "Wait.", *CLAUDE), "codex": ("exec", *CODEX, "Wait.")}


@pytest.mark.parametrize("agent", list(CALLS))
def test_an_agent_comes_back_to_the_new_server(
    agent: str, place: Sandbox, tmp_path: Path, tell: Tell
) -> None:
    where = stage(tmp_path / "stage", QWEN3_CODER)
    waiting, done = turns(QWEN3_CODER, [think("I wait."), CALLS[agent]], [say(DONE)])
    script = {
        "rules": [
            {"when": {"text": "the other client", "tail": 300}, "text": "Hm", "hang": 1},
            {"when": {"text": "gone on", "tail": 600}, **done},
        ],
        "turns": [waiting],
    }
    port = ("--http-port", str(free_port()))
    with where.server(script, *port) as old:
        with place.start(agent, old.url, *ASKED[agent]) as client:
            with _somebody_else(old):
                _until(lambda: (place.work / "began").exists(), old)
                old.process.send_signal(signal.SIGTERM)
                _until(lambda: old.request("GET", "/ready").status == 503, old)
                (place.work / "go").touch()
                _until(lambda: _refused(old), old)
            assert old.process.wait(TIMEOUT_SECONDS) == -signal.SIGTERM
            with where.server(script, *port):
                out, err = client.communicate(timeout=TIMEOUT_SECONDS)
        assert client.returncode == 0, f"{out[-3000:]} {err[-3000:]}"
    assert DONE in out
    asked = [one for one in where.heard if "the other client" not in one.output_text]
    tell(was_exact([one for one in asked if len(one.prompt) > 1_000], new=1, cold=[1]))


@contextmanager
def _somebody_else(server: Running) -> Iterator[None]:
    """An answer that does not end before its client hangs up."""
    messages = [{"role": "user", "content": "I am the other client."}]
    body = {"model": MODEL, "messages": messages, "stream": True}
    with server.open("POST", "/v1/chat/completions", body) as response:
        assert response.read1()
        yield


def _refused(server: Running) -> bool:
    """Whether the agent has been told to come back."""
    lines = re.findall(r"endpoint=(messages|responses) status=503", server.log.read_text())
    return bool(lines)


def _until(is_so: Callable[[], bool], server: Running) -> None:
    """Waits for what comes in a while; where it does not, the log may say why."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while not is_so():
        assert time.monotonic() < end, server.log.read_text()[-5000:]
        time.sleep(0.05)
