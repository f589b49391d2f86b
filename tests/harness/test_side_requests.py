"""`dovetail launch --small`: real clients send their side requests to the small model."""

import re
from pathlib import Path
from typing import Any

import pytest
from client_sandbox import Sandbox
from server_process import Running
from server_setup import MODEL, QWEN3_CODER, call, server_setup, text, think, turns

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

SMALL = "small"
TITLE = "You are a title generator"
#: The beginning of the instructions of Codex's reviewer, which must respond in JSON.
VERDICT = '{"risk_level": "low", "outcome": "allow", "rationale": "It is harmless."}'


def requested_models(server: Running, pattern: str) -> set[str]:
    """Return the models of the logged requests that match a pattern."""
    lines = server.log.read_text().splitlines()
    found = [re.search(r" model=(\S+)", line) for line in lines if re.search(pattern, line)]
    return {match[1] for match in found if match}


def test_codex_reviews_actions_with_the_small_model(sandbox: Sandbox, tmp_path: Path) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    escalated: dict[str, Any] = {
        "cmd": "touch one.txt",
        "sandbox_permissions": "require_escalated",
        "justification": "A file is needed.",
    }
    script = {
        "rules": [
            {
                "when": {"text": "risk_level"},
                "turns": turns(QWEN3_CODER, [text(VERDICT)], [text(VERDICT)], [text(VERDICT)]),
            }
        ],
        "turns": turns(
            QWEN3_CODER, [think("A file."), call("exec_command", **escalated)], [text("Done.")]
        ),
        "end": "fail",
    }
    with setup.server(script, "--served-model-name", SMALL) as server:
        reviewed = ("-c", 'approvals_reviewer="auto_review"', "-a", "on-request")
        command = ("exec", "--json", "-s", "workspace-write", "-c", "features.plugins=false")
        ran = sandbox.run(
            "codex", server.url, *reviewed, *command, "Do it.", flags=("--small", SMALL)
        )
        assert ran.status == 0, ran.err
        assert requested_models(server, "agent=guardian") == {SMALL}
        assert requested_models(server, "endpoint=responses (?!.*agent=)") == {MODEL}


def test_opencode_makes_titles_with_the_small_model(sandbox: Sandbox, tmp_path: Path) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    script = {
        "rules": [{"when": {"text": TITLE}, "text": QWEN3_CODER.spell(text("Greetings"))}],
        "turns": turns(QWEN3_CODER, [text("Hello.")]),
        "end": "fail",
    }
    with setup.server(script, "--served-model-name", SMALL) as server:
        ran = sandbox.run(
            "opencode",
            server.url,
            "run",
            "Say hello.",
            flags=("--small", SMALL),
            OPENCODE_DISABLE_AUTOUPDATE="1",
        )
        assert ran.status == 0, ran.err
        assert requested_models(server, "endpoint=chat_completions") == {MODEL, SMALL}
