"""`dovetail watch` as a process."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from server_process import TIMEOUT_SECONDS, Running, clean_environment


@contextmanager
def watching(url: str, folder: Path, *more: str | Path) -> Iterator[Running]:
    """Run `dovetail watch` during the block; its output is in its `log`."""
    log = folder / "watch.txt"
    command = [sys.executable, "-m", "dovetail", "watch", url, "--port", "0", *map(str, more)]
    with (
        log.open("w") as out,
        subprocess.Popen(
            command, cwd=folder, env=clean_environment(folder), stdout=out, stderr=out, text=True
        ) as process,
    ):
        try:
            while not (found := re.search(r"^\w+ at (http\S+)$", log.read_text(), re.M)):
                assert process.poll() is None, log.read_text()
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.05)
            running = Running(process, found[0], log)
            yield running
        finally:
            for client in running.clients:
                client.close()
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(TIMEOUT_SECONDS)
