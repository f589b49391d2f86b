"""Check that no module spells the numbers and that results are unchanged."""

import ast
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


MODULES = ("expiry", "billing", "calendar_days")


def find_problem() -> str | None:
    for module in MODULES:
        tree = ast.parse(Path(f"{module}.py").read_text("utf-8"))
        numbers = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        if numbers & {86400, 3600, 24, 60, 1440}:
            return f"{module}.py still contains one of the numbers"
        sources = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        plain = [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
        if "units" not in sources + plain:
            return f"{module}.py does not import from units"
    import billing
    import calendar_days
    import expiry
    import units

    if (units.SECONDS_PER_DAY, units.SECONDS_PER_HOUR) != (86400, 3600):
        return "the constants have wrong values"
    if expiry.expires_at(5, 2) != 172805 or billing.started_hours(3601) != 2:
        return "expiry or billing computes another result than before"
    days = calendar_days.day_number(200_000), calendar_days.hour_of_day(200_000)
    return None if days == (2, 7) else f"calendar_days computes {days}, expected (2, 7)"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
