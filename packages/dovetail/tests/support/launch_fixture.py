"""Fixtures for `dovetail launch`: a harness that only reports how it was run."""

import json
import sys
from pathlib import Path
from typing import Any

from dovetail.launch.plan import LaunchRequest, LaunchTarget

MODEL = "some-org/some model"  # with a space, to test quoting
KEY = "sk-$ecret`'!*"  # with characters that are special in shells
CATALOG = {
    "models": [
        {"slug": "another", "context_window": 1},
        {
            "slug": MODEL,
            "base_instructions": "a\nEOF\n$b",
            "context_window": 200_000,
            "auto_compact_token_limit": 180_000,
        },
    ]
}

_HARNESS_SCRIPT = """#!{python}
import json, os, signal, sys, time
if sys.argv[1:] == ["--version"]:
    print("{version} (a fake)")
    sys.exit(0)
report = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "pid": os.getpid()}}
def write_report():
    draft = "{record}.draft"
    with open(draft, "w") as file:
        json.dump(report, file)
    os.replace(draft, "{record}")
{does}
"""
ENDS = "write_report(); sys.exit(7)"
DIES = "write_report(); os.kill(os.getpid(), signal.SIGKILL)"
#: It handles keyboard interrupts itself, and exits on SIGTERM.
WAITS = """
signals = report["signals"] = []
def on_signal(number, frame):
    signals.append(signal.Signals(number).name)
    write_report()
    if number == signal.SIGTERM:
        sys.exit(3)
signal.signal(signal.SIGINT, on_signal)
signal.signal(signal.SIGTERM, on_signal)
write_report()
while True:
    time.sleep(0.02)
"""


class FakeHarness:
    """An executable with a harness's name in its own folder, for the PATH."""

    def __init__(self, folder: Path, name: str, does: str = ENDS, version: str = "2.1.197") -> None:
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True, exist_ok=True)
        self._record_path = folder / f"{name}.json"
        path = self.bin / name
        path.write_text(
            _HARNESS_SCRIPT.format(
                python=sys.executable, record=self._record_path, does=does, version=version
            )
        )
        path.chmod(0o755)

    @property
    def ran(self) -> bool:
        return self._record_path.exists()

    @property
    def invocation(self) -> Any:
        """How it was run: arguments, environment, and received signals."""
        return json.loads(self._record_path.read_text())


def target(window: int | None = 200_000, key: str | None = None) -> LaunchTarget:
    return LaunchTarget("http://127.0.0.1:8000", MODEL, key, window, CATALOG)


def launch_request(
    folder: Path, api: str, executable: str, key: str | None = None
) -> LaunchRequest:
    return LaunchRequest(target(key=key), api, ("-x", "a b"), executable, folder)
