"""Check the order of targets and the error for a cycle."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


GRAPH = {"app": ["lib", "log"], "lib": ["core"], "log": ["core"], "docs": []}
CYCLE = {"app": ["one"], "one": ["two"], "two": ["three"], "three": ["one"], "free": []}


def find_problem() -> str | None:
    from order import CycleError, build_order

    order = list(build_order(GRAPH))
    if sorted(order) != ["app", "core", "docs", "lib", "log"]:
        return f"the targets are {order}"
    for target, others in GRAPH.items():
        for other in others:
            if order.index(other) > order.index(target):
                return f"{other} comes after {target}, which depends on it"
    try:
        return f"a cycle gives {build_order(CYCLE)} instead of CycleError"
    except CycleError as error:
        named = [one for one in ("one", "two", "three") if one in str(error)]
        return None if len(named) > 1 else f"the message names {named} of the cycle: {error}"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
