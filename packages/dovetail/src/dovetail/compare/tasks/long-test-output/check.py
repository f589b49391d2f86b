"""Check all units with values of its own."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


FACTORS = {"mm": 1, "cm": 10, "dm": 100, "m": 1000, "in": 25.4, "ft": 304.8, "yd": 914.4}


def find_problem() -> str | None:
    from units_table import to_mm

    for unit, factor in FACTORS.items():
        for value in (0, 1, 2.5, 100):
            found = to_mm(value, unit)
            if abs(found - value * factor) > 0.001:
                return f"{value} {unit} is {found} mm, expected {value * factor}"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
