"""The scripted engine's own account of what it was given, read while it runs."""

import asyncio
from pathlib import Path

import msgspec

from dovetail.engines.scripted.generation_log import RecordedGeneration
from dovetail_verify.check import Failed

PATIENCE = 10.0  # seconds: an engine writes its line when the last token has left
LOOK = 0.02


class FileRecording:
    """The file that `--record` of the scripted engine names. Each line is read once."""

    __slots__ = ("_at", "_heard", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._heard: list[RecordedGeneration] = []

    async def heard(self, marker: str, least: int = 1) -> list[RecordedGeneration]:
        """The requests whose prompts contain a marker, oldest first, once there are enough."""
        until = asyncio.get_running_loop().time() + PATIENCE
        while True:
            self._read()
            found = [heard for heard in self._heard if marker in heard.text]
            if len(found) >= least:
                return sorted(found, key=lambda heard: heard.began)
            if asyncio.get_running_loop().time() > until:
                raise Failed(
                    f"the engine was given {len(found)} prompts with the user's words, "
                    f"{least} were sent"
                )
            await asyncio.sleep(LOOK)

    def _read(self) -> None:
        """What has been written since."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            whole, end, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(end)
        self._heard += [msgspec.json.decode(line, type=RecordedGeneration) for line in whole.splitlines()]
