"""Check that the old name is gone and that the program works."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


ROWS = [{"kind": "month"}, {"kind": "year"}, {"kind": "month"}]


def find_problem() -> str | None:
    for path in sorted(Path().rglob("*.py")):
        if re.search(r"\bfetch_data\b", path.read_text("utf-8")):
            return f"{path} still contains fetch_data"
    import storage
    from storage.reader import fetch_data_size, load_rows

    if storage.load_rows is not load_rows or storage.__all__ != ["load_rows"]:
        return "the package storage does not export load_rows"
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "rows.jsonl")
        data.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
        if fetch_data_size(str(data)) != 3:
            return "fetch_data_size returns a wrong number"
        command = [sys.executable, "main.py", str(data)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return None if done.stdout == "3 2 1\n" else f"main.py prints {done.stdout!r} {done.stderr!r}"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
