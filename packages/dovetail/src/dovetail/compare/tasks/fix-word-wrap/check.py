"""Check the lines of wrapped texts."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


CASES = [
    ("", 10, []),
    ("one", 10, ["one"]),
    ("one two three", 7, ["one two", "three"]),
    ("extraordinarily long", 5, ["extraordinarily", "long"]),
    ("a bb ccc dddd", 4, ["a bb", "ccc", "dddd"]),
    ("exactly ten", 11, ["exactly ten"]),
]


def find_problem() -> str | None:
    from wrap import wrap

    for text, width, expected in CASES:
        found = wrap(text, width)
        if found != expected:
            return f"wrap({text!r}, {width}) is {found}, expected {expected}"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
