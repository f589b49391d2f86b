"""The file of results, rewritten after each change."""

import json
import time
from pathlib import Path
from typing import Any


class Results:
    """One JSON document. Results of an earlier run stay in it until they are measured again."""

    def __init__(self, path: Path, begun: float) -> None:
        self._path = path
        self._begun = begun
        document: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        self._document = {"machine": {}, "settings": {}, "experiments": {}, **document}

    def describe(self, machine: dict[str, Any], settings: dict[str, Any]) -> None:
        self._document["machine"] = machine
        self._document["settings"] = settings
        self._write()

    def put(self, name: str, experiment: dict[str, Any]) -> None:
        self._document["experiments"][name] = experiment
        self._write()

    def print_progress(self, line: str) -> None:
        """Print progress, with the seconds since the start."""
        print(f"{time.monotonic() - self._begun:7.1f} s  {line}", flush=True)

    def _write(self) -> None:
        """Write the file atomically: a reader never finds a partial file."""
        half = self._path.with_suffix(".half")
        half.write_text(json.dumps(self._document, indent=1), "utf-8")
        half.replace(self._path)
