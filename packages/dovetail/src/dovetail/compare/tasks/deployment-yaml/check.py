"""Check the three changed lines and that no other line differs."""

import hashlib
import sys
from pathlib import Path

CHANGED = {
    8: "  replicas: 3",
    13: "          image: registry.example/api:1.9.0",
    16: "              memory: 512Mi",
}
LINES = 21
OTHERS_SHA256 = "91c0c910994fc14eb93c704dd7a87de0234cd3bb67b4fbde07237a11d26faeb4"


def find_problem() -> str | None:
    lines = [line.rstrip() for line in Path("deployment.yaml").read_text("utf-8").splitlines()]
    if len(lines) != LINES:
        return f"the file has {len(lines)} lines, expected {LINES}"
    for number, expected in CHANGED.items():
        if lines[number - 1].replace('"', "").replace("'", "") != expected:
            return f"line {number} is {lines[number - 1]!r}, expected {expected!r}"
    others = "\n".join(line for number, line in enumerate(lines, 1) if number not in CHANGED)
    if hashlib.sha256(others.encode()).hexdigest() != OTHERS_SHA256:
        return "another line was changed"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
