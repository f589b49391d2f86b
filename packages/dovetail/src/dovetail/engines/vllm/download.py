"""The progress of a download from the hub, measured by its files.

vLLM disables the progress bars of the hub's library, and writes nothing else while it downloads.
"""

import os
from contextlib import suppress
from pathlib import Path

BYTES_PER_MB = 1_000_000


class DownloadProgress:
    """Measures how much of a model was downloaded since this object was created.

    `folder`: vLLM's argument `download_dir`; by default, the cache of the hub's library.
    """

    __slots__ = ("_blobs", "_initial_bytes")

    def __init__(self, model: str, folder: str | None = None) -> None:
        cache = Path(folder).expanduser() if folder else _hub_cache()
        self._blobs = cache / f"models--{model.replace('/', '--')}" / "blobs"
        self._initial_bytes = self._count_bytes()

    @property
    def megabytes(self) -> int:
        """The size of what has arrived. Models in folders have none."""
        return max(self._count_bytes() - self._initial_bytes, 0) // BYTES_PER_MB

    def _count_bytes(self) -> int:
        total = 0
        with suppress(OSError):  # there is no folder yet, or a file was renamed
            for entry in os.scandir(self._blobs):
                with suppress(OSError):
                    total += entry.stat().st_size
        return total


def _hub_cache() -> Path:
    """Return the folder in which the process of vLLM, with this environment, stores downloads."""
    if folder := os.environ.get("HF_HUB_CACHE"):
        return Path(folder).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "huggingface" / "hub"
