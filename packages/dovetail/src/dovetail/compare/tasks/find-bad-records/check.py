"""Check the listed ids."""

import sys
from pathlib import Path

EXPECTED = ["inv-12919", "inv-15131", "inv-19016"]


def find_problem() -> str | None:
    found = Path("bad.txt").read_text("utf-8").split()
    return None if found == EXPECTED else f"bad.txt lists {found}, expected {EXPECTED}"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
