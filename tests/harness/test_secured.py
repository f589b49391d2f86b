"""Real clients at a server as teams run it: HTTPS by an authority of their own, keys, limits.

The first prompt costs more tokens than the key has in a minute. Who asks again waits until that is
made up for, as it is told to, and the work goes on.
"""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from claude_code import claude
from client_sandbox import Sandbox
from codex_greeting_task import DONE, FILE, TASK, TEXT, greeting_turns
from codex_runs import codex
from prefix_exactness import ReportRun, assert_exact
from server_setup import QWEN3_CODER, call, server_setup, text, think, turns

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

KEY = "dvt_a-key-of-the-team"
TOKENS = {"claude": 18_000, "codex": 5_500}


def secured(sandbox: Path, tokens: int) -> tuple[Authority, list[str]]:
    """An authority, and the flags of a server with a certificate of it and a key so limited."""
    authority = Authority(sandbox)
    issued = authority.issue("server")
    keys = sandbox / "keys"
    keys.write_text(f"team:{sha256(KEY.encode()).hexdigest()} tokens={tokens}\n")
    return authority, [
        *("--tls-cert-path", str(issued.cert), "--tls-key-path", str(issued.key)),
        *("--api-key-file", str(keys)),
    ]


def trusting(authority: Authority) -> dict[str, Any]:
    """What a user sets: for programs on OpenSSL or rustls, and for those on Node."""
    return {
        "SSL_CERT_FILE": str(authority.file),
        "NODE_EXTRA_CA_CERTS": str(authority.file),
        "DOVETAIL_API_KEY": KEY,
    }


def waited(log: str) -> None:
    """Somebody was turned away, came back, and nothing was seen that must not be."""
    assert "error=rate_limited" in log
    assert "tenant=team" in log
    assert KEY not in log


def test_claude_code(sandbox: Sandbox, tmp_path: Path, report_run: ReportRun) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    authority, flags = secured(tmp_path, TOKENS["claude"])
    script: dict[str, Any] = {
        "turns": turns(
            QWEN3_CODER,
            (think("A file."), call("Bash", command="echo eins > one.txt", description="Write")),
            (text("Written."),),
        )
    }
    with setup.server(script, *flags) as server:
        assert server.url.startswith("https://")
        run = claude(sandbox, server.url, "Write a file.", **trusting(authority))
        waited(server.log.read_text())
    assert run.result == "Written."
    assert (sandbox.work / "one.txt").read_text() == "eins\n"
    report_run(assert_exact(setup.generations, new=1))


def test_codex(sandbox: Sandbox, tmp_path: Path, report_run: ReportRun) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    authority, flags = secured(tmp_path, TOKENS["codex"])
    with setup.server({"turns": greeting_turns(QWEN3_CODER)}, *flags) as server:
        run = codex(sandbox, server.url, TASK, **trusting(authority))
        waited(server.log.read_text())
    assert (run.result, run.failed) == (DONE, [])
    assert (sandbox.work / FILE).read_bytes() == TEXT.encode()
    report_run(assert_exact(setup.generations, new=1))
