"""Check that the code exists once and that results and errors are unchanged."""

import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


TEXT = "# comment\n\n a ; 1 \nb;20\n"
FIELDS = {"prices": ("product", float), "stock": ("product", int), "labels": ("code", str)}


def find_problem() -> str | None:
    source = Path("importers.py").read_text("utf-8")
    for call in ("open(", ".split("):
        if source.count(call) != 1:
            return f"{call!r} appears {source.count(call)} times in importers.py"
    import importers

    with tempfile.TemporaryDirectory() as folder:
        good, bad = Path(folder, "good"), Path(folder, "bad")
        good.write_text(TEXT, "utf-8")
        bad.write_text("a;1\nb\n", "utf-8")
        for name, (field, convert) in FIELDS.items():
            read = getattr(importers, f"read_{name}")
            expected = [
                {field: key, "value": convert(one)} for key, one in (("a", "1"), ("b", "20"))
            ]
            found = read(str(good))
            if repr(found) != repr(expected):
                return f"read_{name} returns {found}, expected {expected}"
            try:
                return f"read_{name} accepts a bad line: {read(str(bad))}"
            except ValueError as error:
                if "line 2: 2 fields expected, got 1" not in str(error):
                    return f"read_{name} reports {error}"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
