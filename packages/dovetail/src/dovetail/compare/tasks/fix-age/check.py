"""Check ages around birthdays and leap days."""

import sys
from datetime import date

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


CASES = [
    ("2000-06-15", "2026-06-14", 25),
    ("2000-06-15", "2026-06-15", 26),
    ("2004-02-29", "2025-02-28", 20),
    ("2004-02-29", "2025-03-01", 21),
    ("2004-02-29", "2024-02-29", 20),
    ("1950-12-31", "2026-01-01", 75),
    ("2026-01-01", "2026-01-01", 0),
]


def find_problem() -> str | None:
    from age import age

    for born, today, expected in CASES:
        found = age(date.fromisoformat(born), date.fromisoformat(today))
        if found != expected:
            return f"age of {born} on {today} is {found}, expected {expected}"
    try:
        age(date(2026, 1, 2), date(2026, 1, 1))
    except ValueError:
        return None
    return "a birthday after today does not raise ValueError"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
