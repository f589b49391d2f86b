"""Write docs/models.md from the families themselves; with --check, fail if it is not current."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from dovetail_parsers import families

PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"
INTRO = """\
# Models and parser names

Made from the families by `make docs`; do not edit.

A tool parser and a reasoning parser are chosen by name, and the two read one output together. Any
name in a row means the same family. "Beside it" is the reasoning parser that a family's models use
unless the table of models says otherwise.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if out of date")
    check: bool = parser.parse_args().check
    page = render()
    if not check:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page:
        return 0
    print(f"docs/{PAGE.name} is not current: run `make docs`", file=sys.stderr)
    return 1


def render() -> str:
    known = sorted(families(), key=lambda family: family.name)
    names = table(
        ("family", "tool parser", "reasoning parser", "beside it"),
        (
            (
                family.name,
                code(family.tool_names),
                code(family.reasoning_names),
                code([family.reasoning_parser] if family.tool_names else []),
            )
            for family in known
        ),
    )
    models = table(
        ("model id", "tool parser", "reasoning parser"),
        (
            (code([pattern]), code([family.tool_parser]), code([reasoning]))
            for family in known
            for pattern, reasoning in family.models.items()
        ),
    )
    samples = "\n".join(f"### {f.name}\n\n~~~~text\n{f.sample}\n~~~~\n" for f in known)
    return (
        f"{INTRO}\n## Families\n\n{names}\n"
        f"## Models\n\nThe most specific pattern that an id matches decides.\n\n{models}\n"
        f"## What they write\n\n{samples}"
    )


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def code(names: Iterable[str | None]) -> str:
    return " ".join(f"`{name}`" for name in names if name) or "-"


if __name__ == "__main__":
    sys.exit(main())
