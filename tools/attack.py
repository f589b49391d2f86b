"""Attack real servers from outside, and print which promise held.

    python tools/attack.py [--quick] [--seed N] [--only NAME ...] [--histories N] [--jobs N]

Each scenario runs in a process of its own, with a time limit, several at a time. The seed is
printed; the same seed repeats every random choice. The exit status is 1 if a scenario failed.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "packages" / "dovetail" / "tests" / "support")]

from tools.attacks.scenario import Effort, Outcome, Scenario  # noqa: E402
from tools.attacks.scenarios import SCENARIOS  # noqa: E402

DETAIL_LINES = 60
DEFAULT_JOBS = 4  # scenarios wait for timeouts and paced streams much of their time
HEAD = ("scenario", "result", "measured", "limit", "seconds")


def main() -> int:
    options = _parse()
    if options.run_one:
        return _run_here(options)
    if options.list:
        for one in SCENARIOS:
            print(f"{one.name:<28}{one.promise}.")
        return 0
    chosen = [one for one in SCENARIOS if not options.only or one.name in options.only]
    unknown = set(options.only or ()) - {one.name for one in chosen}
    if unknown:
        print(f"unknown scenario {', '.join(sorted(unknown))}; see --list", file=sys.stderr)
        return 2
    effort = Effort(options.seed, options.quick, options.histories)
    return _run_all(chosen, effort, options.jobs)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these scenarios")
    parser.add_argument("--quick", action="store_true", help="run the small forms")
    parser.add_argument("--histories", type=int, default=Effort.histories)
    parser.add_argument("--jobs", type=int, default=DEFAULT_JOBS, help="scenarios at a time")
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.add_argument("--run-one", type=Path, help=argparse.SUPPRESS)  # the file of the outcome
    return parser.parse_args()


def _run_all(chosen: list[Scenario], effort: Effort, jobs: int) -> int:
    print(f"{len(chosen)} scenarios, seed {effort.seed}", flush=True)
    started = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        longest_first = sorted(chosen, key=lambda one: one.limit_seconds, reverse=True)
        running = {one.name: pool.submit(_run, one, effort) for one in longest_first}
    rows = [running[one.name].result() for one in chosen]
    failed = [row[0] for row in rows if row[1] == "FAILED"]
    print(f"\n{table(rows)}\n")
    print(
        f"{len(failed)} of {len(rows)} scenarios failed; seed {effort.seed}, "
        f"{time.monotonic() - started:.0f} s, load {os.getloadavg()[0]:.1f}"
    )
    if failed:
        print(f'repeat with ARGS="--seed {effort.seed} --only {" ".join(failed)}"')
    return 1 if failed else 0


def _run(scenario: Scenario, effort: Effort) -> tuple[str, ...]:
    """Run a scenario in a process of its own, and return its row of the table."""
    started = time.monotonic()
    with TemporaryDirectory(prefix="dovetail-attack-", ignore_cleanup_errors=True) as scratch:
        outcome = _run_apart(scenario, effort, Path(scratch))
    seconds = f"{time.monotonic() - started:.0f}"
    lines = [f"{scenario.name}: {outcome.result} ({seconds} s)"]
    if outcome.result == "FAILED":
        lines += [f"Promise: {scenario.promise}.", str(outcome.measured)]
        lines += outcome.details.splitlines()[-DETAIL_LINES:]
    print("\n".join(lines), flush=True)
    measured = ", ".join(f"{name} {value}" for name, value in outcome.measured.items())
    limits = ", ".join(f"{name} <= {limit}" for name, limit in outcome.limits.items())
    return scenario.name, outcome.result, measured, limits, seconds


def _run_apart(scenario: Scenario, effort: Effort, scratch: Path) -> Outcome:
    written, log = scratch / "outcome.json", scratch / "log"
    command = [sys.executable, __file__, "--run-one", str(written), "--only", scenario.name]
    command += ["--seed", str(effort.seed), "--histories", str(effort.histories)]
    command += ["--quick"] if effort.quick else []
    environment = {**os.environ, "TMPDIR": str(scratch)}  # of processes that are killed, too
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    seconds = scenario.limit_seconds * max(1.0, effort.histories / Effort.histories)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        limit = f"no result within {seconds:.0f} s"
        return Outcome("FAILED", {"error": limit}, details=log.read_text(errors="replace"))
    finally:
        _kill_group(process)
    if written.exists():
        return Outcome(**json.loads(written.read_bytes()))
    return Outcome("FAILED", {"error": "no outcome"}, details=log.read_text(errors="replace"))


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill what the scenario started and did not end, such as a server after a timeout."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _run_here(options: argparse.Namespace) -> int:
    (scenario,) = (one for one in SCENARIOS if one.name in options.only)
    outcome = scenario.run(Effort(options.seed, options.quick, options.histories))
    options.run_one.write_text(json.dumps(asdict(outcome), default=str))
    return 0


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table, for the terminal and for notes."""
    lines = [HEAD, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    shown = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([shown[0], rule, *shown[1:]])


if __name__ == "__main__":
    sys.exit(main())
