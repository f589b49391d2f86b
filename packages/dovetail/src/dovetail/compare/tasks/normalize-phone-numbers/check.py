"""Check the phone numbers."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


EXPECTED = [
    ["name", "phone"],
    ["Ada", "+442079460018"],
    ["Ben", "+49301234567"],
    ["Cem", "+4989555123"],
    ["Dea", "+15550109999"],
    ["Eva", "+491712223344"],
]


def find_problem() -> str | None:
    import csv

    try:
        with open("people_clean.csv", encoding="utf-8", newline="") as file:
            found = [row for row in csv.reader(file) if row]
    except OSError:
        return "there is no people_clean.csv"
    for expected, row in zip(EXPECTED, found, strict=False):
        if row != expected:
            return f"the row of {expected[0]} is {row}, expected {expected}"
    return None if len(found) == len(EXPECTED) else f"there are {len(found)} rows, expected 6"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
