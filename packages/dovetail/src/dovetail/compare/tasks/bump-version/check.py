"""Check the version in all files."""

import json
import sys
import tomllib
from pathlib import Path

CHANGELOG = [
    "# Changelog",
    "## Unreleased",
    "## 2.4.0 (2026-05-04)",
    "- Adds a dimmer.",
    "## 2.3.1 (2026-02-11)",
    "- Fixes the hinge.",
]


def find_problem() -> str | None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    if project["version"] != "2.4.0" or project["dependencies"] != ["wick==2.3.1", "oil>=1"]:
        return f"pyproject.toml has {project}"
    package = json.loads(read("package.json"))
    if package != {"name": "lantern-ui", "version": "2.4.0", "private": True}:
        return f"package.json has {package}"
    if '__version__ = "2.4.0"' not in read("src/lantern/__init__.py"):
        return "src/lantern/__init__.py has another version"
    install = read("docs/install.md")
    if "lantern==2.4.0`" not in install or "2.3.0 and older" not in install:
        return "docs/install.md is wrong"
    lines = [line.strip() for line in read("CHANGELOG.md").splitlines() if line.strip()]
    return None if lines == CHANGELOG else f"CHANGELOG.md has the lines {lines}"


def read(path: str) -> str:
    return Path(path).read_text("utf-8")


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
