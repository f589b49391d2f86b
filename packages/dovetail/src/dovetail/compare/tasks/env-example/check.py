"""Check the listed variables and their defaults."""

import sys
from pathlib import Path

EXPECTED = [
    "API_KEY=",
    "CACHE_URL=",
    "HOST=127.0.0.1",
    "MAIL_RETRIES=3",
    "MAIL_SENDER=",
    "PORT=8000",
    "TZ_NAME=UTC",
]


def find_problem() -> str | None:
    lines = [line.strip() for line in Path(".env.example").read_text("utf-8").splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    return None if found == EXPECTED else f".env.example has {found}, expected {EXPECTED}"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
