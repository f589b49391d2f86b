"""Read the generations that a scripted engine has recorded."""

from pathlib import Path

import msgspec

from dovetail.engines.scripted.engine import RecordedGeneration


def read_generation_log(path: Path) -> list[RecordedGeneration]:
    """Return all recorded generations, in the order in which they ended."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=RecordedGeneration) for line in lines]
