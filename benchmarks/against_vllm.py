"""Compare our parsers with vLLM's, both its older parsers and its newer parser engine."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from benchmarks.report import ROOT, Result, table

SHORT, LONG = 2_000, 32_000
CAP = 10  # seconds after which a run of theirs is stopped
GROWS = 4.0  # from short to long: a parser that rescans all text grows up to sixteenfold
GROWS_SLIGHTLY = 1.5
HELD = 2  # at most this many deltas for hundreds of chunks
FASTER_THAN_GROWING = 10.0
INTRO = f"""\
Both run in one process, alternating, on the same chunks; a marker that is one token is one chunk.
The tokenizer is a fake. Only the calls of vLLM's parser are measured, not the texts that its server
joins for them. The long run of a slow parser is done once and stopped after {CAP} seconds; ≥ marks
a cost that was still growing. *Growth* is vLLM's own, from 2k to 32k. *Deltas* is the number of
deltas for the short text: a parser with few deltas holds text back. *Same*: the output equals the
input, except for white space at the ends.
"""
TITLES = {
    "tool_call": "One tool argument",
    "text": "Text, parsed by the tool parser",
    "reasoning": "Reasoning, parsed by the reasoning parser",
}
HEAD = (
    *("family", "vLLM's parser", "kind"),
    *("ours 2k", "vLLM 2k", "ratio"),
    *("ours 32k", "vLLM 32k", "ratio"),
    *("growth", "deltas", "same"),
)


class Row(msgspec.Struct, frozen=True):
    """One of our families and one of vLLM's parsers. Costs are microseconds per chunk."""

    kind: str
    family: str
    parser: str
    engine: bool
    short: tuple[float, float]
    long: tuple[float, float]
    whole: bool  # whether theirs parsed all of the long text in time
    deltas: int  # of theirs for the short text
    same: bool  # whether their output equals the input

    @property
    def growth(self) -> float:
        return self.long[1] / self.short[1]

    @property
    def ratios(self) -> tuple[float, float]:
        """Their cost divided by ours, for the short and the long text."""
        return self.short[1] / self.short[0], self.long[1] / self.long[0]

    def cells(self) -> list[str]:
        more = "" if self.whole else "≥ "
        return [
            self.family,
            self.parser,
            "engine" if self.engine else "older",
            *(f"{us:.2f}" for us in self.short),
            f"{self.ratios[0]:.1f}",
            f"{self.long[0]:.2f}",
            f"{more}{self.long[1]:.2f}",
            f"{more}{self.ratios[1]:.1f}",
            f"{more}{self.growth:.1f}",
            str(self.deltas),
            "yes" if self.same else "no",
        ]

    def failures(self) -> Iterator[str]:
        name = f"{self.family} against vLLM's {self.parser}, {self.kind}"
        if self.ratios[0] < 1:
            yield f"{name}: slower at {SHORT:,} characters"
        if self.growth >= GROWS and self.ratios[1] < FASTER_THAN_GROWING:
            yield f"{name}: under {FASTER_THAN_GROWING:.0f} times as fast at {LONG:,} characters"


class Rows(msgspec.Struct, frozen=True):
    version: str
    rows: list[Row]
    failed: list[str]  # families that could not be measured with this vLLM


def here() -> str | None:
    """Return this interpreter, if it has vLLM."""
    return sys.executable if find_spec("vllm") else None


def run(python: str) -> Result:
    """Run the measurement in the interpreter that has vLLM."""
    sources = [str(ROOT), *map(str, ROOT.glob("packages/*/src"))]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sources),
        "PYTHONUNBUFFERED": "1",
        "VLLM_LOGGING_LEVEL": "CRITICAL",
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rows.json")
        command = [python, "-m", "benchmarks.vllm_parsers", str(out)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        found = msgspec.json.decode(out.read_bytes(), type=Rows)
    failures = [failure for row in found.rows for failure in row.failures()]
    title = f"Against vLLM {found.version}"
    return Result("vllm", title, _numbers(found), _readings(found), failures)


def _kinds(found: Rows) -> Iterator[tuple[str, list[Row]]]:
    for kind, title in TITLES.items():
        rows = [row for row in found.rows if row.kind == kind]
        if rows:
            yield title, rows


def _numbers(found: Rows) -> str:
    parts = [
        f"\n### {title}\n\n{table(HEAD, (row.cells() for row in rows))}"
        for title, rows in _kinds(found)
    ]
    return INTRO + "".join(parts)


def _readings(found: Rows) -> str:
    parts = [f"{title}: {_reading(rows)}" for title, rows in _kinds(found)]
    if found.failed:
        parts.append(f"Could not be measured: {', '.join(found.failed)}.\n")
    return "\n".join(parts)


def _reading(rows: Sequence[Row]) -> str:
    """Summarize the numbers in a few sentences."""
    growing = [row for row in rows if row.growth >= GROWS]
    slightly = [row for row in rows if GROWS_SLIGHTLY <= row.growth < GROWS]
    closest = min(rows, key=lambda row: row.ratios[0])
    lines = [f"At 2k the closest is {closest.parser} with {closest.ratios[0]:.1f} times our cost."]
    if growing:
        nearest = min(growing, key=lambda row: row.ratios[1])
        lines.append(
            f"{len(growing)} of {len(rows)} grow at least {GROWS:.0f} times from 2k to 32k; of "
            f"those the closest at 32k is {nearest.parser} with {nearest.ratios[1]:.1f} times."
        )
    for intro, some in (
        ("Growing less than that, with their ratio at 32k", slightly),
        ("Holding text back until it is complete", [row for row in rows if row.deltas <= HELD]),
        ("Output differs from the input", [row for row in rows if not row.same]),
    ):
        if some:
            lines.append(f"{intro}: {', '.join(_mention(row, some is slightly) for row in some)}.")
    return "\n".join(lines) + "\n"


def _mention(row: Row, with_ratio: bool) -> str:
    return f"{row.parser} {row.ratios[1]:.1f}" if with_ratio else row.parser
