"""Check the merged contacts."""

import json
import sys
from pathlib import Path

EXPECTED = [
    {"name": "Ada Lane", "email": "ada@example.org", "phone": "555-0199", "updated": "2025-03-01"},
    {
        "name": "Bo Finch-Ray",
        "email": "bo@example.org",
        "phone": "555-0101",
        "updated": "2025-06-20",
    },
    {"name": "Cyn Reed", "email": "cyn@example.org", "phone": "555-0133", "updated": "2025-02-02"},
    {"name": "Dev Holt", "email": "dev@example.org", "phone": None, "updated": "2023-05-05"},
]


def find_problem() -> str | None:
    found = json.loads(Path("merged.json").read_text("utf-8"))
    return None if found == EXPECTED else f"merged.json is {found}, expected {EXPECTED}"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
