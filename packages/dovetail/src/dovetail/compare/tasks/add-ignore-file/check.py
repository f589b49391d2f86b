"""Check the files that an ignore file leaves."""

import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


FILES = [
    "a.txt",
    "a.log",
    "keep.log",
    "cache/b.txt",
    "src/cache/c.txt",
    "src/main.py",
    "src/temp",
    "temp/d.txt",
    "docs/x/e.md",
    "docs/f.md",
]
IGNORE = "# comment\n\n*.log\n!keep.log\ncache\ntemp/\ndocs/*.md\n!docs/f.md\n"
EXPECTED = ["a.txt", "docs/f.md", "keep.log", "src/main.py", "src/temp"]


def find_problem() -> str | None:
    from listing import list_files

    with tempfile.TemporaryDirectory() as folder:
        for name in FILES:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("", "utf-8")
        everything = list(list_files(folder))
        Path(folder, ".ignore").write_text(IGNORE, "utf-8")
        found = list(list_files(folder))
    if everything != sorted(FILES):
        return f"without .ignore the files are {everything}"
    return None if found == EXPECTED else f"the files are {found}, expected {EXPECTED}"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
