"""Check merged intervals."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


CASES = [
    ([], []),
    ([(5, 7), (1, 3)], [(1, 3), (5, 7)]),
    ([(1, 10), (2, 3), (4, 5)], [(1, 10)]),
    ([(1, 2), (2, 3)], [(1, 3)]),
    ([(8, 9), (1, 4), (3, 6), (6, 7)], [(1, 7), (8, 9)]),
    ([(1, 1), (1, 1)], [(1, 1)]),
]


def find_problem() -> str | None:
    from intervals import merge

    for intervals, expected in CASES:
        given = list(intervals)
        found = [tuple(one) for one in merge(given)]
        if found != expected:
            return f"merge({intervals}) is {found}, expected {expected}"
        if given != intervals:
            return "merge changed its argument"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
