"""List files."""

from pathlib import Path


def list_files(folder):
    """Return the relative paths of all files with forward slashes, sorted."""
    root = Path(folder)
    return sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()
    )
