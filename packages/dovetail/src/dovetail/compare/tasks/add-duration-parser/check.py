"""Check durations and their use in the scheduler."""

import json
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


VALID = {
    "90s": 90,
    "1h30m": 5400,
    "2d": 172800,
    "1h 15m 5s": 4505,
    "45": 45,
    "1d1s": 86401,
    "0m": 0,
}
INVALID = ["", " ", "h", "1x", "30m1h", "1h2h", "-5s", "1.5h", "5 5"]


def find_problem() -> str | None:
    from duration import parse_duration
    from scheduler import read_jobs

    for text, seconds in VALID.items():
        if parse_duration(text) != seconds:
            return f"parse_duration({text!r}) is {parse_duration(text)!r}, expected {seconds}"
    for text in INVALID:
        try:
            result = parse_duration(text)
        except ValueError:
            continue
        return f"parse_duration({text!r}) is {result!r} instead of a ValueError"
    jobs = [{"name": "a", "every": "2h"}, {"name": "b", "every": "7"}]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "jobs.json")
        path.write_text(json.dumps(jobs), "utf-8")
        found = read_jobs(str(path))
    return None if found == {"a": 7200, "b": 7} else f"read_jobs returns {found}"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
