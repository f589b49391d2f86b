"""Check that shares are exact, also for amounts beyond the precision of floats."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


CASES = [
    (100, [1, 1, 1], [34, 33, 33]),
    (1000, [1, 1, 1, 1, 1, 1], [167, 167, 167, 167, 166, 166]),
    (5, [3, 3, 4], [2, 1, 2]),
    (10, [1, 2, 4], [1, 3, 6]),
    (0, [2, 5], [0, 0]),
    (10**18 + 1, [1, 1], [(10**18) // 2 + 1, (10**18) // 2]),
]


def find_problem() -> str | None:
    from bill import split

    for cents, weights, expected in CASES:
        found = list(split(cents, weights))
        if found != expected:
            return f"split({cents}, {weights}) is {found}, expected {expected}"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
