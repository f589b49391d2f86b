"""Check which functions are left."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


def find_problem() -> str | None:
    import greetings
    import helpers

    left = {name for name in vars(helpers) if not name.startswith("_")}
    if left != {"shout", "repeat", "initials"}:
        return f"helpers.py has {sorted(left)}, expected initials, repeat, shout"
    found = greetings.greet("Ada Lovelace")
    if found != "HELLO ADA LOVELACE!***AL":
        return f"the greeting is {found!r}"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
