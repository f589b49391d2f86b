"""Sandboxes for real clients: each has its own home and project, separate from the user's.

Every client is started as by users, with `dovetail launch`. `make harnesses` downloads them.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

_FETCHED = Path(__file__).parents[3] / ".cache" / "harnesses" / "bin"
PROGRAMS = Path(os.environ.get("DOVETAIL_HARNESSES") or _FETCHED)  # set it to test other versions
CLIENT_TIMEOUT_SECONDS = 240.0  # a client that hangs is a failed test
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DO_NOT_TRACK": "1",
    "IS_SANDBOX": "1",  # otherwise Claude Code refuses to run as root
}


@dataclass(frozen=True)
class ClientResult:
    """The result of a client."""

    out: str
    err: str
    status: int


@dataclass(frozen=True)
class Sandbox:
    """The folder of one run: `home` is the client's home, `work` is its project."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def run(
        self, harness: str, url: str, *arguments: str, flags: tuple[str, ...] = (), **more: str
    ) -> ClientResult:
        """Run the client to its end. `flags` are for `dovetail launch`, `more` are variables."""
        with self.start(harness, url, *arguments, flags=flags, **more) as process:
            try:
                out, err = process.communicate(timeout=CLIENT_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.terminate()
                out, err = process.communicate()
                pytest.fail(f"{harness} did not end: {out[-2000:]} {err[-2000:]}")
        return ClientResult(out, err, process.returncode)

    def start(
        self, harness: str, url: str, *arguments: str, flags: tuple[str, ...] = (), **more: str
    ) -> "subprocess.Popen[str]":
        """Start the client."""
        if not (PROGRAMS / harness).exists():
            pytest.skip(f"the real {harness} is not at hand: make harnesses (it needs npm)")
        command = [sys.executable, "-m", "dovetail", "launch", harness, "--url", url, *flags]
        return subprocess.Popen(
            [*command, "--", *arguments],
            cwd=self.work,
            env=self.environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def environment(self, **more: str) -> dict[str, str]:
        """Return the client's environment variables."""
        return {
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "DOVETAIL_HOME": str(self.folder / "launch"),
            **QUIET,
            **more,
        }


def create_sandbox(folder: Path) -> Sandbox:
    """Create a sandbox whose project is an empty repository."""
    made = Sandbox(folder)
    made.home.mkdir(parents=True)
    made.work.mkdir()
    git = [
        "git",
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@localhost",
        "-c",
        "init.defaultBranch=main",
    ]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "begin"]):
        subprocess.run([*git, *command], cwd=made.work, check=True, env=made.environment())
    return made
