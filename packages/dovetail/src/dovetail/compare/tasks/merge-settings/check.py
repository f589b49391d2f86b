"""Check merged dictionaries and the merged file."""

import copy
import json
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


CASES = [
    ({}, {}, {}),
    ({"a": 1}, {"a": None, "b": None}, {}),
    ({"a": 1}, {"a": {"b": 2}}, {"a": {"b": 2}}),
    ({"a": {"b": 2, "c": 3}}, {"a": {"b": None}}, {"a": {"c": 3}}),
    ({"a": {"b": 2}}, {"a": 5}, {"a": 5}),
    ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
    ({}, {"a": {"b": {"c": None, "d": 0}}}, {"a": {"b": {"d": 0}}}),
]
PRODUCTION = {
    "name": "shop",
    "cache": {"size": 100, "ttl": 600, "backend": {"kind": "redis", "url": "redis://cache"}},
    "hosts": ["a.example", "b.example"],
    "features": {"chat": True, "beta": False},
}


def find_problem() -> str | None:
    from merge import merge_settings

    for base, override, expected in CASES:
        given = copy.deepcopy((base, override))
        found = merge_settings(*given)
        if found != expected:
            return f"merge_settings({base}, {override}) is {found}, expected {expected}"
        if given != (base, override):
            return f"merge_settings({base}, {override}) changed an argument"
    found = json.loads(Path("production.json").read_text("utf-8"))
    return None if found == PRODUCTION else f"production.json contains {found}"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
