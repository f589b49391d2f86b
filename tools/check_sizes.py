"""Sizes of files and functions under packages/*/src: a small table, and what is too big.

A file over 600 lines fails. What is only noted: a file over 400 whose module docstring does not say
"Long because ...", a function over 60 lines, and a package whose p90 of function length is over 35.
"""

import ast
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE_FAILS = 600
FILE_EXPLAINS = 400
FUNCTION_NOTED = 60
FUNCTION_P90 = 35
REASON = "long because"
HEAD = "package    files  lines  biggest  fn median  p90  max"


@dataclass(frozen=True)
class Source:
    """One file: its length, whether its docstring says why, and its functions with theirs."""

    path: Path
    lines: int
    explained: bool
    functions: dict[str, int]


def main(root: Path) -> int:
    failures: list[str] = []
    notes: list[str] = []
    print(HEAD)
    for folder in sorted(root.glob("packages/*/src")):
        sources = [read(path) for path in sorted(folder.rglob("*.py"))]
        if not sources:
            continue
        package = folder.parent.name
        lengths = sorted(length for source in sources for length in source.functions.values())
        print(row(package, sources, lengths))
        failures += [f"{s.path.relative_to(root)}: {s.lines} lines" for s in sources if too_long(s)]
        notes += [note for source in sources for note in notes_on(source, root)]
        if p90(lengths) > FUNCTION_P90:
            notes.append(f"{package}: p90 of function length is {p90(lengths)}, aim {FUNCTION_P90}")
    for note in notes:
        print(f"note: {note}")
    for failure in failures:
        print(f"FAIL: {failure}, limit {FILE_FAILS}")
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


def too_long(source: Source) -> bool:
    return source.lines > FILE_FAILS


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
    """The length that nine functions in ten do not exceed; `lengths` is sorted."""
    return lengths[-(-len(lengths) * 9 // 10) - 1] if lengths else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
