"""Check leap years and the lengths of months."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


def find_problem() -> str | None:
    from calendar_rules import days_in_month, is_leap_year

    for year, expected in ((1900, False), (2000, True), (2023, False), (2024, True), (2100, False)):
        if is_leap_year(year) != expected:
            return f"is_leap_year({year}) is {not expected}"
    for year, month, expected in ((2024, 2, 29), (1900, 2, 28), (2026, 12, 31), (2026, 4, 30)):
        found = days_in_month(year, month)
        if found != expected:
            return f"days_in_month({year}, {month}) is {found}, expected {expected}"
    for month in (0, 13, -1):
        try:
            days_in_month(2026, month)
        except ValueError:
            continue
        return f"month {month} does not raise ValueError"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
