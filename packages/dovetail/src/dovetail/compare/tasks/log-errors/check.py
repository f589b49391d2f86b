"""Check the counts and the first time stamps."""

import json
import sys
from pathlib import Path

EXPECTED = {
    "E101": {"count": 30, "first": "2026-04-01T00:44:57Z"},
    "E204": {"count": 28, "first": "2026-04-01T01:36:01Z"},
    "E310": {"count": 19, "first": "2026-04-01T00:11:36Z"},
    "E404": {"count": 23, "first": "2026-04-01T00:19:13Z"},
    "E500": {"count": 38, "first": "2026-04-01T00:17:52Z"},
    "E777": {"count": 1, "first": "2026-04-01T07:39:40Z"},
}


def find_problem() -> str | None:
    found = json.loads(Path("errors.json").read_text("utf-8"))
    for code in sorted({*EXPECTED, *found}):
        if found.get(code) != EXPECTED.get(code):
            return f"{code} is {found.get(code)}, expected {EXPECTED.get(code)}"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
