"""docs/experiments.md: `python -m benchmarks.gpu.page RESULTS.json [more of them] [--out docs]`.

The text is in `frame.md`. Tables and plots replace its markers; a section without measurements is
omitted.
"""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import plots
from benchmarks.gpu.findings import Run, read_runs
from benchmarks.gpu.tables import tables
from benchmarks.report import ROOT

FRAME = Path(__file__).with_name("frame.md").read_text("utf-8")
FOLDER = "experiments"
_MARKER = re.compile(r"<!-- (\w+) -->")
_SECTION = re.compile(r"(?m)^(?=## )")
_LONG = 50_000  # tokens of a prompt that is as long as the published ones
_QUICK = "**A run with short prompts to test the scripts: its figures are no results.**"

#: Names of a run's settings on the page.
_WORDS = {
    "tokens": "tokens of system text and tools, approximately",
    "repeats": "minimum number of rounds",
    "ttft": "TTFT",
    "throughput": "tokens per second",
}


def write(sources: Sequence[Path], out: Path) -> None:
    """Write the page, its plots and the raw results."""
    runs = read_runs(sources)
    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in _pictures(runs).items():
        (folder / name).write_text(picture, "utf-8")
    for run, name in zip(runs, raw_names(runs), strict=True):
        (folder / name).write_text(json.dumps(run.document, indent=1) + "\n", "utf-8")
    (out / f"{FOLDER}.md").write_text(written(runs), "utf-8")


def written(runs: Sequence[Run]) -> str:
    """Return the text of the page."""
    parts = {**tables(runs), **_links(runs), "raw": _raw(runs), "settings": _settings(runs)}
    first, *sections = _SECTION.split(FRAME)
    filled = [_filled(section, parts) for section in sections if _has_results(section, parts)]
    return "".join([_filled(first, parts), *filled])


def raw_names(runs: Sequence[Run]) -> list[str]:
    """Return links to the files of raw results."""
    if len(runs) == 1:
        return ["results.json"]
    return [
        f"results-{re.sub(r'[^a-z0-9]+', '-', run.name.lower()).strip('-')}.json" for run in runs
    ]


def _has_results(section: str, parts: dict[str, str]) -> bool:
    """Return whether a section has content for its markers, or has no markers."""
    names = [name for name in _MARKER.findall(section) if name != "settings"]
    return not names or any(parts[name] for name in names)


def _filled(section: str, parts: dict[str, str]) -> str:
    filled = _MARKER.sub(lambda marker: parts[marker[1]].strip(), section)
    return re.sub(r"\n{3,}", "\n\n", filled)


def _pictures(runs: Sequence[Run]) -> dict[str, str]:
    drawn = {"ttft.svg": plots.first_tokens(runs), "turns.svg": plots.turns(runs)}
    return {name: picture for name, picture in drawn.items() if picture}


def _links(runs: Sequence[Run]) -> dict[str, str]:
    drawn = _pictures(runs)
    titles = {
        "ttft": "Time to first token by case, with the tokens prefilled",
        "turns": "Tokens prefilled and time to first token in each turn, ledger on and off",
    }
    return {
        f"plot_{name}": f"![{title}]({FOLDER}/{name}.svg)" if f"{name}.svg" in drawn else ""
        for name, title in titles.items()
    }


def _raw(runs: Sequence[Run]) -> str:
    return ", ".join(f"[{name}]({FOLDER}/{name})" for name in raw_names(runs))


def _settings(runs: Sequence[Run]) -> str:
    """Describe the settings of the runs, each of them once."""
    lines: list[str] = []
    for run in runs:
        settings = run.document.get("settings", {})
        lines += [_QUICK] if settings.get("tokens", _LONG) < _LONG else []
        lines += [f"{_WORDS[key]}: {settings[key]}." for key in _WORDS if settings.get(key)]
        options = settings.get("engine_options") or {}
        given = ", ".join(f"`{key}={value}`" for key, value in options.items())
        lines += [f"engine options, attention {run.name}: {given}."] if given else []
    return "\n".join(f"- {one}" for one in dict.fromkeys(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="+", help="JSON results of a run")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    given = parser.parse_args()
    write(given.results, given.out)


if __name__ == "__main__":
    main()
