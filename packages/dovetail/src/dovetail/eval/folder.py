"""The folder that a task is done in. Nothing outside of it can be named."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

MAX_FILE_BYTES = 256 << 10  # of one file: no task needs more
MAX_PATH_PARTS = 16  # of a path; what walks through a folder and takes it away does so recursively


class ToolError(Exception):
    """A tool could not do what it was asked. The model is told why, and goes on."""


class Workspace:
    """Files below `root`, and records that a task's service knows of.

    Paths are relative and have no `..` in them. Only this class makes anything here, and it makes
    no links, so a path that looks confined is.
    """

    __slots__ = ("_lookup_counts", "_records", "root")

    def __init__(self, root: Path, records: Mapping[str, str] | None = None) -> None:
        self.root = root
        self._records = records or {}
        self._lookup_counts: Counter[str] = Counter()

    def read(self, path: str) -> str:
        try:
            return self._resolve(path).read_bytes().decode()
        except FileNotFoundError:
            raise ToolError(f"there is no file {path!r}: list_files shows what there is") from None
        except OSError as fault:
            raise ToolError(f"{path!r} cannot be read: {fault.strerror}") from None

    def write(self, path: str, content: str) -> None:
        data = _encode_text(content)
        if len(data) > MAX_FILE_BYTES:
            raise ToolError(f"{len(data)} bytes are too many for a file here")
        place = self._resolve(path)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        except OSError as fault:
            raise ToolError(f"{path!r} cannot be written: {fault.strerror}") from None

    def list_files(self) -> list[str]:
        """All files, by their paths."""
        found = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.root).as_posix() for path in found)

    def look_up_record(self, key: str) -> str:
        """A record, from a service that is always busy when it is first asked."""
        if key not in self._records:
            raise ToolError(f"there is no record {key!r}")
        self._lookup_counts[key] += 1
        if self._lookup_counts[key] == 1:
            raise ToolError("the service is busy: try the same call again")
        return self._records[key]

    def _resolve(self, path: str) -> Path:
        pure = PurePosixPath(path)
        if (
            pure.is_absolute()
            or ".." in pure.parts
            or not pure.parts
            or b"\0" in _encode_text(path)
        ):
            raise ToolError(f"{path!r} is not a path inside the folder")
        if len(pure.parts) > MAX_PATH_PARTS:
            raise ToolError(f"a path of {len(pure.parts)} parts is too long")
        return self.root / pure


def _encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolError("half a character is no text") from None
