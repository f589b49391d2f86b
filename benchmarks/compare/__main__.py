"""Run experiments whose true effect is known: `python -m benchmarks.compare OUT [NAME...]`.

Each runs the real harness on a stand-in model behind Dovetail. The records and reports are in
OUT/NAME, with the plots as SVG files; finished experiments are not run again. Prints Markdown
tables of the results. The random calls of the stand-in are known from its seed, so that the effect
without them must be exactly the known one; otherwise the exit status is 1.
"""

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.compare.stand_in import FOLLOW_UP, draw_random_calls
from dovetail.compare.measures import format_amount, format_interval, format_p
from dovetail.compare.plots import PlotsUnavailable, render_plots
from dovetail.compare.report import build_report
from dovetail.compare.store import read_plan, read_records

ROOT = Path(__file__).parents[2]
HARNESSES = Path(os.environ.get("DOVETAIL_HARNESSES") or ROOT / ".cache" / "harnesses" / "bin")
TOKENIZER = ROOT / ".cache" / "tokenizers" / "qwen3"
_KEEPS_LOOP = "loop.index0 > ns.last_query_index"
#: A template without any reasoning would not do: Dovetail then writes the reasoning itself.
_DROPS_LOOP = f"{_KEEPS_LOOP} and not message.tool_calls"
_DROPPING_TEMPLATE = "without-loop-reasoning.jinja"
_TOLERANCE = 1e-9
_TABLE_MEASURES = (
    "tool calls", "turns", "prompt tokens", "new tokens", "cached tokens", "re-prefilled tokens",
    "reasoning tokens", "time to first token",
)  # fmt: skip
LONG_OUTPUT = ("--long-output", "8000")  # 38,894 characters


@dataclass(frozen=True)
class KnownExperiment:
    """An experiment. `stand_in` are its arguments; `effect` is that of b on the tool calls."""

    name: str
    harness: str
    stand_in: tuple[str, ...]
    a: Mapping[str, Any]
    b: Mapping[str, Any]
    effect: int
    only: tuple[str, ...] = field(default=())

    @property
    def seed(self) -> int:
        """The seed of the stand-in: each experiment has random calls of its own."""
        return zlib.crc32(self.name.encode())


def _sensitive(*names: str) -> tuple[str, ...]:
    return ("--sensitive", ",".join(names))


LAB = {"alias": "lab-model"}
BRIEF = "Prefer few tool calls."
REVIEW = {**LAB, "follow_up": f"{FOLLOW_UP}, then report the result."}
EXPERIMENTS = (
    KnownExperiment(
        "codex-null", "codex", _sensitive("instructions", "truncation"), LAB, LAB, 0
    ),
    KnownExperiment(
        "codex-catalog-records",
        "codex",
        (*_sensitive("instructions", "truncation"), *LONG_OUTPUT),
        {"alias": "gpt-5.5", "catalog": False},
        {**LAB, "catalog": False},
        3,
    ),
    KnownExperiment(
        "codex-instructions",
        "codex",
        _sensitive("instructions"),
        {**LAB, "codex_profile": "gpt-5.5"},
        LAB,
        2,
    ),
    KnownExperiment(
        "codex-truncation",
        "codex",
        (*_sensitive("truncation"), *LONG_OUTPUT),
        LAB,
        {**LAB, "catalog": False},
        1,
    ),
    *(
        KnownExperiment(
            f"{harness}-interleaving",
            harness,
            _sensitive("reasoning"),
            # With the ledger, both templates would get the tokens that the model generated.
            {**LAB, "ledger": "off"},
            {**LAB, "ledger": "off", "template": _DROPPING_TEMPLATE},
            1,
        )
        for harness in ("codex", "claude")
    ),
    KnownExperiment(
        "claude-null", "claude", (*_sensitive("truncation", "tools"),), LAB, LAB, 0
    ),
    KnownExperiment(
        "claude-instructions",
        "claude",
        (*_sensitive("instructions"), "--marker", BRIEF),
        {**LAB, "arguments": ["--append-system-prompt", BRIEF]},
        LAB,
        2,
    ),
    KnownExperiment(
        "claude-truncation",
        "claude",
        # Claude Code saves outputs above 30,000 characters to a file, whatever the limit is.
        (*_sensitive("truncation"), "--long-output", "4500"),  # 21,393 characters
        LAB,
        {**LAB, "environment": {"BASH_MAX_OUTPUT_LENGTH": "10000"}},
        1,
    ),
    KnownExperiment(
        "claude-tools",
        "claude",
        _sensitive("tools"),
        LAB,
        {**LAB, "arguments": ["--disallowedTools", "TaskCreate"]},
        -1,
    ),
    KnownExperiment(
        "claude-deferred-tools",
        "claude",
        _sensitive("tools"),
        {**LAB, "environment": {"ENABLE_TOOL_SEARCH": "false"}},
        {**LAB, "environment": {"ENABLE_TOOL_SEARCH": "true"}},
        -1,
    ),
    KnownExperiment(
        "ledger", "builtin", (*_sensitive(), "--compact"), LAB, {**LAB, "ledger": "off"}, 0
    ),
    KnownExperiment(
        "ledger-claude", "claude", (*_sensitive(), "--compact"), LAB, {**LAB, "ledger": "off"},
        0,
    ),
    *(
        KnownExperiment(
            f"ledger-interleaving-{harness}",
            harness,
            _sensitive("reasoning"),
            {**LAB, "template": _DROPPING_TEMPLATE},
            {**LAB, "template": _DROPPING_TEMPLATE, "ledger": "off"},
            1,
        )
        for harness in ("codex", "claude")
    ),
    KnownExperiment(
        "retention",
        "builtin",
        _sensitive("reasoning"),
        {**REVIEW, "retention": "all"},
        {**REVIEW, "retention": "template"},
        2,
    ),
    KnownExperiment(
        "retention-none",
        "builtin",
        _sensitive("reasoning"),
        {**REVIEW, "retention": "template"},
        {**REVIEW, "retention": "none"},
        0,
    ),
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    out = Path(arguments[0]).absolute()
    names = arguments[1:] or [one.name for one in EXPERIMENTS]
    rows, tables, status = [], [], 0
    for experiment in EXPERIMENTS:
        if experiment.name in names:
            print(f"== {experiment.name}", file=sys.stderr, flush=True)
            if failed := run_experiment(experiment, out):
                return failed
            exact = measure_exact_effect(experiment, out / experiment.name)
            if abs(exact - experiment.effect) > _TOLERANCE:
                status = 1
                print(
                    f"{experiment.name}: the effect is {exact:+.2f}, expected {experiment.effect}",
                    file=sys.stderr,
                )
            rows.append(_format_row(experiment, out / experiment.name))
            tables.append(_format_measures(experiment, out / experiment.name))
            _write_plots(out / experiment.name)
    print("| experiment | harness | true effect | a | b | b - a | 95 % interval | p | verdict | "
          "b - a without the random calls |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    print("\n".join(tables))
    return status


def run_experiment(experiment: KnownExperiment, out: Path) -> int:
    """Run an experiment in its own folder, unless it is finished. Returns the exit status."""
    folder = out / experiment.name
    if (folder / "report.json").exists():
        return 0
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = _create_model(out / "model")
    with _stand_in(model, (*experiment.stand_in, "--seed", str(experiment.seed))) as url:
        server = {"engine": "vllm", "engine_url": url, "model": str(model)}
        a, b = (
            _write_profile(folder / f"profile-{name}.toml", {**server, **profile}, model)
            for name, profile in (("a", experiment.a), ("b", experiment.b))
        )
        command = [
            *(sys.executable, "-m", "dovetail", "compare", "--harness", experiment.harness),
            *("--a", a, "--b", b, "--out", str(folder)),
            *(part for pattern in experiment.only for part in ("--only", pattern)),
        ]
        path_variable = f"{HARNESSES}{os.pathsep}{os.environ['PATH']}"
        with (folder / "output.txt").open("w") as output:
            return subprocess.run(
                command,
                env={**os.environ, "PATH": path_variable, "COLUMNS": "160"},
                stdout=output,
                check=False,
            ).returncode


def _write_profile(path: Path, settings: dict[str, Any], model: Path) -> str:
    if "template" in settings:
        settings["template"] = str(model / settings["template"])
    path.write_text("\n".join(f"{key} = {_toml(one)}" for key, one in settings.items()))
    return str(path)


@contextmanager
def _stand_in(model: Path, arguments: Sequence[str]) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.compare.stand_in", "--model", str(model)]
    with subprocess.Popen(
        [*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().rpartition(" ")[2].strip()
        finally:
            process.terminate()


def _create_model(folder: Path) -> Path:
    """Create a model folder without weights, and a template that drops the loop's reasoning."""
    if not folder.is_dir():
        shutil.copytree(TOKENIZER, folder)
        config = {"max_position_embeddings": 200_000, "model_type": "qwen3"}
        (folder / "config.json").write_text(json.dumps(config))
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    assert _KEEPS_LOOP in template
    (folder / _DROPPING_TEMPLATE).write_text(template.replace(_KEEPS_LOOP, _DROPS_LOOP))
    return folder


def _write_plots(folder: Path) -> None:
    """Write the plots of a report as files, if matplotlib is installed."""
    plan = read_plan(folder)
    assert plan is not None
    report = build_report(plan.experiment, read_records(folder))
    try:
        plots = render_plots(report.measures)
    except PlotsUnavailable as error:
        print(error, file=sys.stderr)
        return
    for name, plot in zip(("tasks", "effects"), plots.values(), strict=True):
        (folder / f"{name}.svg").write_text(f"{plot}\n")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


def _format_row(experiment: KnownExperiment, folder: Path) -> str:
    report = json.loads((folder / "report.json").read_text())
    calls = report["measures"][0]
    effect = calls["effect"]
    low, high = effect["interval"] or (None, None)
    interval = "-" if low is None else f"{low:+.2f} to {high:+.2f}"
    p_value = "-" if calls["corrected_p"] is None else f"{calls['corrected_p']:.4f}"
    cells = (
        *(experiment.name, experiment.harness, f"{experiment.effect:+d}"),
        *(f"{effect['mean_a']:.2f}", f"{effect['mean_b']:.2f}", f"{effect['difference']:+.2f}"),
        *(interval, p_value, calls["verdict"]),
        f"{measure_exact_effect(experiment, folder):+.2f}",
    )
    return f"| {' | '.join(cells)} |"


def measure_exact_effect(experiment: KnownExperiment, folder: Path) -> float:
    """Return b - a of the tool calls without the random calls of the stand-in.

    The stand-in draws them in the order of the runs.
    """
    random = Random(experiment.seed)
    totals = {"a": 0, "b": 0}
    records = read_records(folder)
    for record in records:
        totals[record.profile] += record.total_tool_calls - draw_random_calls(random)
    return (totals["b"] - totals["a"]) / (len(records) / 2)


def _format_measures(experiment: KnownExperiment, folder: Path) -> str:
    """Return a table of the measures of the serving path."""
    report = json.loads((folder / "report.json").read_text())
    lines = ["", f"{experiment.name}:", ""]
    lines += ["| measure | a | b | b - a | 95 % interval | corrected p | verdict |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for measure in report["measures"]:
        if measure["name"] in _TABLE_MEASURES:
            effect, unit = measure["effect"], measure["unit"]
            cells = (
                measure["name"],
                *(format_amount(effect[key], unit) for key in ("mean_a", "mean_b")),
                format_amount(effect["difference"], unit, signed=True),
                format_interval(effect["interval"], unit),
                format_p(measure["corrected_p"]) if measure["tested"] else "not tested",
                measure["verdict"],
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
