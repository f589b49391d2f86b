"""Check conversions of temperatures."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


CASES = [
    (100, "C", "F", 212),
    (32, "F", "C", 0),
    (0, "C", "K", 273.15),
    (0, "K", "C", -273.15),
    (212, "F", "K", 373.15),
    (0, "K", "F", -459.67),
    (20, "C", "C", 20),
]


def find_problem() -> str | None:
    from temperature import convert

    for value, source, target, expected in CASES:
        found = convert(value, source, target)
        if abs(found - expected) > 1e-6:
            return f"convert({value}, {source!r}, {target!r}) is {found}, expected {expected}"
    for source, target in (("X", "C"), ("C", "X")):
        try:
            convert(1, source, target)
        except ValueError:
            continue
        return f"convert from {source} to {target} does not raise ValueError"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
