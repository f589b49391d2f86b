"""A local Ray Serve with frontends, in child processes.

DOVETAIL_RAY_PYTHON names the interpreter that has Ray; tools/fetch_ray.py creates one.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
from server_process import Running, clean_environment, free_port, source_paths

PYTHON = "DOVETAIL_RAY_PYTHON"
STOP_TIMEOUT_SECONDS = 120.0

REAL = [
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        PYTHON not in os.environ,
        reason=f"{PYTHON} names no interpreter with Ray: run make test-ray",
    ),
]


@dataclass
class RayServe:
    """A running Ray Serve. `server` sends requests to its proxy."""

    server: Running
    process: "subprocess.Popen[str]"

    def kill(self, frontend: str) -> None:
        """Kill the process of a frontend."""
        _send(self.process, f"kill {frontend}")

    def scale(self, frontends: int) -> None:
        """Change the number of frontends, and wait until Ray has stopped or started them."""
        _send(self.process, f"scale {frontends}")


@contextmanager
def running_ray(folder: Path, arguments: dict[str, Any]) -> Iterator[RayServe]:
    """Run frontends with these arguments during the block."""
    port = free_port()
    driver = Path(__file__).with_name("ray_driver.py")
    log = folder / "ray.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [os.environ[PYTHON], str(driver)],
            env=ray_paths(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
    with process:
        try:
            _send(process, json.dumps({"port": port, "arguments": arguments}), log)
            yield RayServe(Running(process, f"serving at http://127.0.0.1:{port}", log), process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def ray_paths(folder: Path) -> dict[str, str]:
    """Return the environment of a process that imports Dovetail with Ray's interpreter."""
    return {
        **clean_environment(folder / "home"),
        "PYTHONPATH": source_paths(folder / "metadata"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder),
    }


def _send(process: "subprocess.Popen[str]", line: str, log: Path | None = None) -> None:
    """Send a line to the driver and wait for its report."""
    stdin, stdout = _pipes(process)
    stdin.write(line + "\n")
    stdin.flush()
    for report in stdout:
        if report.startswith("driver: "):
            return
    shown = "" if log is None else log.read_text(errors="replace")[-4000:]
    raise AssertionError(f"Ray ended with {process.wait()}: {shown}")


def _pipes(process: "subprocess.Popen[str]") -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
