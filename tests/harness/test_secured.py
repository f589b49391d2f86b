"""Real clients with a server as teams run it: HTTPS with a private CA, keys, limits.

The first prompt costs more tokens than the key's limit per minute. A client that retries waits as
long as the error requests, and then continues.
"""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from claude_code import claude
from client_sandbox import PROGRAMS, Sandbox
from codex_greeting_task import DONE, FILE, TASK, TEXT, greeting_turns
from codex_runs import codex
from prefix_exactness import ReportRun, assert_exact
from server_setup import QWEN3_CODER, call, server_setup, text, think, turns

from dovetail.launch.client_version import find_version

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

KEY = "dvt_a-key-of-the-team"
CODEX_TOKENS = 4_000


def claude_tokens() -> int:
    """A limit that is smaller than the first prompt, which most tools left in 2.1.325."""
    version = find_version(str(PROGRAMS / "claude")) or (0,)
    return 11_000 if version >= (2, 1, 325) else 18_000


def secured(sandbox: Path, tokens: int) -> tuple[Authority, list[str]]:
    """Return a CA, and the flags of a server with its certificate and a limited key."""
    authority = Authority(sandbox)
    issued = authority.issue("server")
    keys = sandbox / "keys"
    keys.write_text(f"team:{sha256(KEY.encode()).hexdigest()} tokens={tokens}\n")
    return authority, [
        *("--tls-cert-path", str(issued.cert), "--tls-key-path", str(issued.key)),
        *("--api-key-file", str(keys)),
    ]


def trusting(authority: Authority) -> dict[str, Any]:
    """Return the settings of a user: for programs with OpenSSL or rustls, and with Node."""
    return {
        "SSL_CERT_FILE": str(authority.file),
        "NODE_EXTRA_CA_CERTS": str(authority.file),
        "DOVETAIL_API_KEY": KEY,
    }


def waited(log: str) -> None:
    """Check that a client was rejected and retried, and that the log has no secrets."""
    assert "error=rate_limited" in log
    assert "tenant=team" in log
    assert KEY not in log


def test_claude_code(sandbox: Sandbox, tmp_path: Path, report_run: ReportRun) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    authority, flags = secured(tmp_path, claude_tokens())
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
    authority, flags = secured(tmp_path, CODEX_TOKENS)
    with setup.server({"turns": greeting_turns(QWEN3_CODER)}, *flags) as server:
        run = codex(sandbox, server.url, TASK, **trusting(authority))
        waited(server.log.read_text())
    assert (run.result, run.failed) == (DONE, [])
    assert (sandbox.work / FILE).read_bytes() == TEXT.encode()
    report_run(assert_exact(setup.generations, new=1))
