"""List files."""

from fnmatch import fnmatchcase
from pathlib import Path


def list_files(folder):
    """Return the relative paths of all files with forward slashes, sorted."""
    root = Path(folder)
    source = root / ".ignore"
    lines = source.read_text("utf-8").splitlines() if source.exists() else []
    patterns = [line.strip() for line in lines if line.strip() and line[0] != "#"]
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(
        path.as_posix()
        for path in found
        if path.as_posix() != ".ignore" and not is_ignored(path, patterns)
    )


def is_ignored(path, patterns):
    ignored = False
    for line in patterns:
        if matches(path, line.removeprefix("!")):
            ignored = not line.startswith("!")
    return ignored


def matches(path, pattern):
    folders = path.parts[:-1]
    if pattern.endswith("/"):
        plain = pattern.rstrip("/")
        if "/" in plain:
            parents = [parent.as_posix() for parent in path.parents]
            return any(fnmatchcase(parent, plain) for parent in parents)
        return any(fnmatchcase(one, plain) for one in folders)
    if "/" in pattern:
        return fnmatchcase(path.as_posix(), pattern)
    return any(fnmatchcase(one, pattern) for one in path.parts)
