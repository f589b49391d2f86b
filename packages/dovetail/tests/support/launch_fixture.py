"""A stage for `dovetail launch`: a harness that only tells how it was run."""

import json
import sys
from pathlib import Path
from typing import Any

from dovetail.launch.plan import LaunchRequest, LaunchTarget

MODEL = "some-org/some model"  # a space, to see that it survives every quoting
KEY = "sk-$ecret`'!*"  # all that a shell finds interesting
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

_TELLS = """#!{python}
import json, os, signal, sys, time
told = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "pid": os.getpid()}}
def tell():
    draft = "{told}.draft"
    with open(draft, "w") as file:
        json.dump(told, file)
    os.replace(draft, "{told}")
{does}
"""
ENDS = "tell(); sys.exit(7)"
DIES = "tell(); os.kill(os.getpid(), signal.SIGKILL)"
#: It takes two interrupts from the keyboard as its own business, and ends by SIGTERM.
WAITS = """
heard = told["heard"] = []
def hear(number, frame):
    heard.append(signal.Signals(number).name)
    tell()
    if number == signal.SIGTERM:
        sys.exit(3)
signal.signal(signal.SIGINT, hear)
signal.signal(signal.SIGTERM, hear)
tell()
while True:
    time.sleep(0.02)
"""


class FakeHarness:
    """An executable of a harness's name in a folder of its own, for the PATH."""

    def __init__(self, folder: Path, name: str, does: str = ENDS) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True, exist_ok=True)
        self._told = folder / f"{name}.json"
        path = self.bin / name
        path.write_text(_TELLS.format(python=sys.executable, told=self._told, does=does))
        path.chmod(0o755)

    @property
    def ran(self) -> bool:
        return self._told.exists()

    @property
    def told(self) -> Any:
        """How it was run: arguments, environment, and what it heard."""
        return json.loads(self._told.read_text())


def target(window: int | None = 200_000, key: str | None = None) -> LaunchTarget:
    return LaunchTarget("http://127.0.0.1:8000", MODEL, key, window, CATALOG)


def order(folder: Path, api: str, executable: str, key: str | None = None) -> LaunchRequest:
    return LaunchRequest(target(key=key), api, ("-x", "a b"), executable, folder)
