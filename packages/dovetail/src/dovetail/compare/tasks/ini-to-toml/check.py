"""Check sections, keys, values and types."""

import sys
import tomllib
from pathlib import Path

EXPECTED = {
    "server": {
        "host": "0.0.0.0",
        "port": 8080,
        "data": "/srv/app/data",
        "debug": True,
        "ratio": 0.75,
    },
    "mail": {
        "enabled": False,
        "recipients": ["ops@example.org", "dev@example.org"],
        "subject": "Report: 100% done",
        "retries": 3,
    },
}


def find_problem() -> str | None:
    found = tomllib.loads(Path("app.toml").read_text("utf-8"))
    return None if repr_sorted(found) == repr_sorted(EXPECTED) else f"app.toml contains {found}"


def repr_sorted(value: object) -> str:
    """Return a text that distinguishes types, such as 1 and True, but not the order of keys."""
    if isinstance(value, dict):
        return repr([(key, repr_sorted(one)) for key, one in sorted(value.items())])
    return repr(value)


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
