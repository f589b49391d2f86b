"""Check the sizes of files and functions under packages/*/src and print a table.

A file over 600 lines fails, and so does one over 400 in `dovetail`. A module of `dovetail` under 40
lines fails as a fragment unless two modules import it or it is an entry point: a package's
`__init__`, a command, a harness, a process. Reported without failing: a file over 400 lines
elsewhere without "Long because ..." in its docstring, a function over 60 lines, and a package whose
p90 of function length is over 35.
"""

import ast
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE_FAILS = 600
APPLICATION_FILE_FAILS = 400
FRAGMENT_LINES = 40
APPLICATION = "dovetail"
ENTRY_POINTS = ("__init__", "__main__", "server_main")  # names of modules that no module imports
REGISTERED = ("cli", "launch")  # packages whose modules are entries of a registry
TASKS = "/compare/tasks/"  # data of `dovetail compare`
FILE_EXPLAINS = 400
FUNCTION_NOTED = 60
FUNCTION_P90 = 35
REASON = "long because"
HEAD = "package    files  lines  biggest  fn median  p90  max"


@dataclass(frozen=True)
class Source:
    """One file: its length, whether its docstring gives a reason, and the lengths of functions."""

    path: Path
    lines: int
    explained: bool
    functions: dict[str, int]


def main(root: Path) -> int:
    failures: list[str] = []
    notes: list[str] = []
    print(HEAD)
    for folder in sorted(root.glob("packages/*/src")):
        paths = (path for path in sorted(folder.rglob("*.py")) if TASKS not in path.as_posix())
        sources = [read(path) for path in paths]
        if not sources:
            continue
        package = folder.parent.name
        lengths = sorted(length for source in sources for length in source.functions.values())
        print(row(package, sources, lengths))
        limit = APPLICATION_FILE_FAILS if package == APPLICATION else FILE_FAILS
        for source in sources:
            if source.lines > limit:
                path = source.path.relative_to(root)
                failures.append(f"{path}: {source.lines} lines, limit {limit}: split it")
        if package == APPLICATION:
            failures += fragments(folder, sources)
        notes += [note for source in sources for note in notes_on(source, root)]
        if p90(lengths) > FUNCTION_P90:
            notes.append(f"{package}: p90 of function length is {p90(lengths)}, aim {FUNCTION_P90}")
    for note in notes:
        print(f"note: {note}")
    for failure in failures:
        print(f"FAIL: {failure}")
    return 1 if failures else 0


def read(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    reason = REASON in " ".join((ast.get_docstring(tree) or "").lower().split())
    return Source(path, len(text.splitlines()), reason, dict(functions(tree)))


def functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            end = node.end_lineno or node.lineno
            yield f"{node.name}:{node.lineno}", end - node.lineno + 1


def fragments(folder: Path, sources: list[Source]) -> Iterator[str]:
    """Yield modules that are too small to be separate."""
    importers: Counter[str] = Counter()
    for source in sources:
        importers.update(imported_modules(source.path))
    for source in sources:
        relative = source.path.relative_to(folder).with_suffix("")
        if source.lines >= FRAGMENT_LINES or relative.name in ENTRY_POINTS:
            continue
        if not {*REGISTERED} & {*relative.parts} and importers[".".join(relative.parts)] < 2:
            yield (
                f"{relative}.py: {source.lines} lines, minimum {FRAGMENT_LINES} unless two modules "
                "import it: merge it into the module that imports it"
            )


def imported_modules(path: Path) -> set[str]:
    """Return the modules that a file imports from, and the names that may be modules."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def notes_on(source: Source, root: Path) -> Iterator[str]:
    path = source.path.relative_to(root)
    if source.lines > FILE_EXPLAINS and not source.explained:
        yield f'{path}: {source.lines} lines and no "Long because ..." in the docstring'
    for name, length in source.functions.items():
        if length > FUNCTION_NOTED:
            yield f"{path}: {name} has {length} lines, aim {FUNCTION_NOTED}"


def row(package: str, sources: list[Source], lengths: list[int]) -> str:
    lines = [source.lines for source in sources]
    median = round(statistics.median(lengths)) if lengths else 0
    return (
        f"{package:<10}{len(sources):>6}{sum(lines):>7}{max(lines):>9}"
        f"{median:>11}{p90(lengths):>5}{max(lengths, default=0):>5}"
    )


def p90(lengths: list[int]) -> int:
    """Return the length that nine functions in ten do not exceed; `lengths` is sorted."""
    return lengths[-(-len(lengths) * 9 // 10) - 1] if lengths else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
