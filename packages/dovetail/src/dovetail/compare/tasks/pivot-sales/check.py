"""Check the pivot table."""

import sys
from pathlib import Path

EXPECTED = [
    "region,2026-01,2026-02,2026-03,total",
    "north,323,1104,1110,2537",
    "south,656,1689,1445,3790",
    "west,1560,0,1022,2582",
]


def find_problem() -> str | None:
    found = [line.strip() for line in Path("pivot.csv").read_text("utf-8").splitlines()]
    return None if found == EXPECTED else f"pivot.csv is {found}, expected {EXPECTED}"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
