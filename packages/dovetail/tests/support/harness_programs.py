"""The real harnesses, each in its own environment. `make harnesses` fetches them."""

import os
import subprocess
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[4] / ".cache" / "harnesses" / "bin"
_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
}


def claude_code(
    folder: Path, address: str, model: str, prompt: str, *, status: int = 0, **variables: str
) -> str:
    """Run Claude Code in the folder `work` with the home `home`; return the JSON lines printed."""
    command = [_program("claude"), "-p", prompt]
    command += ["--model", model, "--output-format", "stream-json", "--verbose"]
    return _run(
        folder,
        [*command, "--dangerously-skip-permissions"],
        status,
        IS_SANDBOX="1",
        ANTHROPIC_API_KEY="local",
        ANTHROPIC_BASE_URL=address,
        **_QUIET,
        **variables,
    )


def _run(folder: Path, command: list[str], status: int, **variables: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), **variables}
    done = subprocess.run(
        command,
        cwd=folder / "work",
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def _program(name: str) -> str:
    if not (PROGRAMS / name).exists():
        pytest.skip(f"the real {name} is not available: run make harnesses (requires npm)")
    return str(PROGRAMS / name)
