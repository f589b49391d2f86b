"""Check the listed calls."""

import sys
from pathlib import Path

EXPECTED = [
    "jobs/alpha.py:18",
    "jobs/alpha.py:28",
    "jobs/bravo.py:8",
    "jobs/delta.py:13",
    "jobs/ember.py:8",
    "jobs/ember.py:13",
    "jobs/harbor.py:8",
    "jobs/indigo.py:8",
    "jobs/kelp.py:8",
    "jobs/maple.py:8",
    "jobs/nectar.py:13",
    "jobs/onyx.py:8",
    "jobs/onyx.py:18",
    "jobs/onyx.py:28",
    "jobs/quartz.py:8",
    "jobs/quartz.py:13",
    "jobs/raven.py:18",
]


def find_problem() -> str | None:
    found = Path("calls.txt").read_text("utf-8").split()
    missing = [one for one in EXPECTED if one not in found]
    surplus = [one for one in found if one not in EXPECTED]
    if missing or surplus:
        return f"missing: {missing}; not calls: {surplus}"
    return None if found == EXPECTED else "the lines are not sorted, or one is repeated"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
