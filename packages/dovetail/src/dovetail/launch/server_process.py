"""A server of our own for the time of one run."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import IO

from dovetail.launch.plan import LaunchError
from dovetail.launch.private_files import open_private
from dovetail.settings.sources import CONFIG_FILE_ENV

_GREETING = re.compile(r"^serving .* at (\S+)$")
_LAST_LINES = 15
_GRACE = 15.0  # seconds to end by itself


@contextmanager
def serving(
    arguments: Sequence[str], secrets: Mapping[str, str], log: Path
) -> Iterator["ChildServer"]:
    """`dovetail serve` with these arguments, until the block is left."""
    with open_private(log) as lines:
        # A session of its own: a Ctrl-C is meant for the harness.
        process = subprocess.Popen(
            # -P: agents are run in other people's projects, and nothing of these is imported.
            [sys.executable, "-P", "-m", "dovetail.launch.server_main", "serve", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=lines,
            text=True,
            env={CONFIG_FILE_ENV: "", **os.environ, **secrets},
            start_new_session=True,
        )
        child = ChildServer(process, log, lines)
        try:
            child.wait_until_ready()
            yield child
        finally:
            child.stop()


class ChildServer:
    """A running server. Its log is a file, still open: another run may have taken its name."""

    __slots__ = ("_lines", "_log", "_process", "address")

    def __init__(self, process: "subprocess.Popen[str]", log: Path, lines: IO[str]) -> None:
        self._process = process
        self._log = log
        self._lines = lines
        self.address = ""

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Reads its greeting. Raises with its last words if it ends before."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = _GREETING.match(line.rstrip())
            if found:
                self.address = found[1]
                Thread(target=_drain, args=(self._process.stdout,), daemon=True).start()
                return
        self._process.wait()
        raise LaunchError(f"the server did not start:\n{self.last_words()}")

    def stop(self) -> None:
        """Ends the server and waits for it."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """The end of its log, and where all of it is."""
        self._lines.seek(0)
        lines = self._lines.read().splitlines()[-_LAST_LINES:]
        return "\n".join([*lines, f"(its log: {self._log})"])


def _drain(stream: IO[str]) -> None:
    """What it says further is not for the harness's screen, and must not make it wait."""
    for _ in stream:
        pass
