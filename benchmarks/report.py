"""What a benchmark hands back, and benchmarks/RESULTS.md made of it."""

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks" / "RESULTS.md"
INTRO = """\
# Results

Made by `python -m benchmarks`, `make bench-frontend` and `make bench-prepare`, each with `--write`;
do not edit. Every part says where it was measured.

Where a part does not say otherwise, times are microseconds of processor time for one chunk of 4
characters: all chunks of an output fed to a fresh parser, divided by their number, the best of
several rounds in every window of chunks. The machines are noisy: compare columns of one table, not
tables of different runs.
"""


@dataclass(frozen=True)
class Result:
    """One question's answer: numbers as Markdown, what they say, and what should not be so."""

    name: str
    title: str
    numbers: str
    reading: str
    failures: Sequence[str] = ()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, names on the left and numbers on the right."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def write(results: Iterable[Result]) -> None:
    """Puts the results into the page; parts that were not measured now stay as they are."""
    page = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    parts = dict(re.findall(r"(?s)<!-- (\w+) -->\n(.*?)<!-- end -->\n", page))
    for result in results:
        head = f"## {result.title}\n\n{stamp()}\n\n"
        parts[result.name] = f"{head}{result.numbers}\n{result.reading}"
    body = "\n".join(f"<!-- {name} -->\n{part}<!-- end -->\n" for name, part in parts.items())
    PAGE.write_text(f"{INTRO}\n{body}", encoding="utf-8")


def stamp() -> str:
    """Where and of what a measurement was made."""
    day = datetime.now(UTC).date().isoformat()
    return (
        f"{day}, commit {commit()}, {platform.python_implementation()} "
        f"{platform.python_version()}, {processor()}, {os.cpu_count()} cores."
    )


def commit() -> str:
    commit = _git("rev-parse", "--short=12", "HEAD") or "unknown"
    return f"{commit} with changes" if _git("status", "--porcelain", "packages") else commit


def _git(*arguments: str) -> str:
    found = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def processor() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.is_file() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()
