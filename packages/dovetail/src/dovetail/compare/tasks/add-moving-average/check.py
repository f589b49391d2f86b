"""Check moving averages."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


CASES = [
    ([1, 2, 3, 4], 2, [1.5, 2.5, 3.5]),
    ([1, 2, 3], 3, [2.0]),
    ([1, 2], 3, []),
    ([5], 1, [5.0]),
    ([], 1, []),
]


def find_problem() -> str | None:
    from series import moving_average, total

    for values, size, expected in CASES:
        found = moving_average(values, size)
        if found != expected:
            return f"moving_average({values}, {size}) is {found}, expected {expected}"
    if total([1, 2]) != 3:
        return "total was changed"
    try:
        moving_average([1], 0)
    except ValueError:
        return None
    return "size 0 does not raise ValueError"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
