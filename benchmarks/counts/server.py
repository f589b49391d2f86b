"""`dovetail serve` with a profiler that SIGUSR1 starts, and stops again.

When it is stopped, it writes its counts as JSON to the file that the variable COUNTS_FILE names.
Only the thread of the event loop is profiled.
"""

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from dovetail.cli.main import main

FILE_VARIABLE = "COUNTS_FILE"
TOGGLE = signal.SIGUSR1


class CallCounter:
    """Counts the calls of Python functions, and those of C functions by Python code."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._python: Counter[CodeType] = Counter()
        self._native: Counter[tuple[CodeType, str]] = Counter()
        self._running = False

    def toggle(self, *_: object) -> None:
        self._running = not self._running
        if self._running:
            self._python.clear()
            self._native.clear()
            sys.setprofile(self._count)
            return
        sys.setprofile(None)
        counts = {
            "python": {_name(code): count for code, count in self._python.items()},
            "native": {f"{_name(c)}: {name}": count for (c, name), count in self._native.items()},
        }
        whole = self._path.with_suffix(".part")
        whole.write_text(json.dumps(counts), "utf-8")
        whole.rename(self._path)  # a reader never sees a part of it

    def _count(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self._python[frame.f_code] += 1
        elif event == "c_call":
            self._native[frame.f_code, argument.__qualname__] += 1


def _name(code: CodeType) -> str:
    """Return the module and the name of a function, unique by its line."""
    path = code.co_filename.rpartition("/src/")[2].rpartition("site-packages/")[2]
    return f"{path}:{code.co_firstlineno} {code.co_qualname}"


if __name__ == "__main__":
    signal.signal(TOGGLE, CallCounter(Path(os.environ[FILE_VARIABLE])).toggle)
    main()
