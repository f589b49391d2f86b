"""Write docs/models.md from the families themselves; with --check, fail if it is not current."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from dovetail_parsers import families

PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"
INTRO = """\
# Models and parser names

The server selects the parsers from the model's id and chat template. To select them yourself, use
`--tool-call-parser NAME` and `--reasoning-parser NAME` with any name of the first table. Names in
one row mean the same family. Both parsers run as one parser over the output.

`make docs` generates this page from the families; do not edit it.
"""
FAMILIES = """\
The default reasoning parser is the one that the models of a family use, unless the table of models
names another.
"""
MODELS = """\
The patterns match model ids. If several patterns match an id, the most specific one is used.
"""
SAMPLES = """\
One tool call, or one reasoning span where a family has no tool calls, as models of the family write
it.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="only check, and fail if the file is out of date"
    )
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
        ("family", "tool parser", "reasoning parser", "default reasoning parser"),
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
        f"{INTRO}\n## Families\n\n{FAMILIES}\n{names}\n"
        f"## Models\n\n{MODELS}\n{models}\n"
        f"## Output formats\n\n{SAMPLES}\n{samples}"
    )


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def code(names: Iterable[str | None]) -> str:
    return " ".join(f"`{name}`" for name in names if name) or "-"


if __name__ == "__main__":
    sys.exit(main())
