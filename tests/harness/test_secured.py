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
from codex_greeting import DONE, FILE, TASK, TEXT, greeting
from codex_runs import codex
from exactness import Tell, was_exact
from sandbox import Sandbox
from stage import QWEN3_CODER, call, say, stage, think, turns

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

KEY = "dvt_a-key-of-the-team"
TOKENS = {"claude": 18_000, "codex": 5_500}


def secured(place: Path, tokens: int) -> tuple[Authority, list[str]]:
    """An authority, and the flags of a server with a certificate of it and a key so limited."""
    authority = Authority(place)
    issued = authority.issue("server")
    keys = place / "keys"
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


def test_claude_code(place: Sandbox, tmp_path: Path, tell: Tell) -> None:
    scene = stage(tmp_path / "stage", QWEN3_CODER)
    authority, flags = secured(tmp_path, TOKENS["claude"])
    script: dict[str, Any] = {
        "turns": turns(
            QWEN3_CODER,
            (think("A file."), call("Bash", command="echo eins > one.txt", description="Write")),
            (say("Written."),),
        )
    }
    with scene.server(script, *flags) as server:
        assert server.url.startswith("https://")
        told = claude(place, server.url, "Write a file.", **trusting(authority))
        waited(server.log.read_text())
    assert told.result == "Written."
    assert (place.work / "one.txt").read_text() == "eins\n"
    tell(was_exact(scene.heard, new=1))


def test_codex(place: Sandbox, tmp_path: Path, tell: Tell) -> None:
    scene = stage(tmp_path / "stage", QWEN3_CODER)
    authority, flags = secured(tmp_path, TOKENS["codex"])
    with scene.server({"turns": greeting(QWEN3_CODER)}, *flags) as server:
        told = codex(place, server.url, TASK, **trusting(authority))
        waited(server.log.read_text())
    assert (told.result, told.failed) == (DONE, [])
    assert (place.work / FILE).read_bytes() == TEXT.encode()
    tell(was_exact(scene.heard, new=1))
