"""Check the diagnosis and the header."""

import json
import sys
from pathlib import Path

DIAGNOSIS = {"file": "src/pebble/cobalt_0910.c", "line": 88, "symbol": "MAX_FRAME"}
DEFINED = {"LIMITS_H": "", "MAX_PATH_PARTS": "16", "MAX_HEADER": "8192", "MAX_FRAME": "4096"}


def find_problem() -> str | None:
    found = json.loads(Path("diagnosis.json").read_text("utf-8"))
    if found != DIAGNOSIS:
        return f"diagnosis.json contains {found}, expected {DIAGNOSIS}"
    lines = [line.split() for line in Path("include/limits.h").read_text("utf-8").splitlines()]
    lines = [line for line in lines if line]
    defined = {line[1]: " ".join(line[2:]) for line in lines if line[0] == "#define"}
    if defined != DEFINED:
        return f"include/limits.h defines {defined}, expected {DEFINED}"
    return None if lines[-1][0] == "#endif" else "include/limits.h does not end with #endif"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
