"""Check both output formats, the exit status and missing files."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "wc.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=20)


def find_problem() -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "a.txt"), Path(folder, "b.txt")
        first.write_text("one two\nthree\n", "utf-8")
        second.write_text("x", "utf-8")
        names, missing = (str(first), str(second)), str(Path(folder, "none.txt"))
        plain, as_json = run(*names), run("--json", *names)
        failed = run(names[0], missing, names[1], "--json")
        plain_failed = run(missing, names[0])
    if plain.stdout != f"2 3 14 {names[0]}\n1 1 1 {names[1]}\n" or plain.returncode:
        return f"the plain output is {plain.stdout!r} {plain.stderr!r}"
    counts = [{"lines": 2, "words": 3, "characters": 14}, {"lines": 1, "words": 1, "characters": 1}]
    expected = dict(zip(names, counts, strict=True))
    for name, result in (("--json", as_json), ("--json with a missing file", failed)):
        if json.loads(result.stdout or "null") != expected:
            return f"{name} prints {result.stdout!r} {result.stderr!r}"
    if as_json.returncode or failed.returncode != 1 or plain_failed.returncode != 1:
        return "the exit status must be 1 only if a file is missing"
    if f"wc.py: {missing}: not found" not in failed.stderr or "Traceback" in failed.stderr:
        return f"a missing file is reported as {failed.stderr!r}"
    return None if plain_failed.stdout == f"2 3 14 {names[0]}\n" else "files were not counted"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
