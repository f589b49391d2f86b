"""Check the entries, and that the rest of the page is unchanged."""

import hashlib
import sys
from pathlib import Path

START, END = "<!-- contents -->\n", "<!-- end of contents -->\n"
ENTRIES = [
    "- [First use](#first-use)",
    "  - [Cleaning before use](#cleaning-before-use)",
    "- [Daily use](#daily-use)",
    "  - [What's the limit?](#whats-the-limit)",
    "- [Daily use](#daily-use-1)",
]
REST_SHA256 = "9d3600082db0f0da3d78025155fbfc206949153ffc6caa2239b1f0c5800a59f5"


def find_problem() -> str | None:
    text = Path("guide.md").read_text("utf-8")
    before, start, rest = text.partition(START)
    contents, end, after = rest.partition(END)
    if not start or not end:
        return "a comment around the contents is missing"
    if hashlib.sha256((before + start + end + after).encode()).hexdigest() != REST_SHA256:
        return "guide.md was changed outside the contents"
    found = [line.rstrip() for line in contents.splitlines() if line.strip()]
    return None if found == ENTRIES else f"the contents are {found}, expected {ENTRIES}"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
