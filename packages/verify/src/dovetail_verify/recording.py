"""The scripted engine's own account of what it was given, read while it runs."""

import asyncio
from pathlib import Path

import msgspec

from dovetail.engines.scripted.generation_log import RecordedGeneration
from dovetail_verify.check import CheckFailed

RECORD_TIMEOUT_SECONDS = 10.0  # seconds: an engine writes its line when the last token has left
POLL_SECONDS = 0.02


class FileRecording:
    """The file that `--record` of the scripted engine names. Each line is read once."""

    __slots__ = ("_offset", "_requests", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._requests: list[RecordedGeneration] = []

    async def find_requests(self, marker: str, min_count: int = 1) -> list[RecordedGeneration]:
        """The requests whose prompts contain a marker, oldest first, once there are enough."""
        until = asyncio.get_running_loop().time() + RECORD_TIMEOUT_SECONDS
        while True:
            self._read_new_lines()
            found = [heard for heard in self._requests if marker in heard.text]
            if len(found) >= min_count:
                return sorted(found, key=lambda heard: heard.began)
            if asyncio.get_running_loop().time() > until:
                raise CheckFailed(
                    f"the engine was given {len(found)} prompts with the user's words, "
                    f"{min_count} were sent"
                )
            await asyncio.sleep(POLL_SECONDS)

    def _read_new_lines(self) -> None:
        """What has been written since."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, end, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(end)
        self._requests += [
            msgspec.json.decode(line, type=RecordedGeneration) for line in whole.splitlines()
        ]
