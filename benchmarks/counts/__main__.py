"""Count what the server does per token of paced streams, and per short turn.

The engine is a scripted one in a process of its own, over HTTP or behind the step protocol; each
case runs three times: without a tracer (wake-ups and CPU time), with strace (system calls) and with
a profiler (Python calls).
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.running import NAME, ROOT

from benchmarks import report
from benchmarks.counts.counters import (
    count_wakeups,
    counting_calls,
    counting_system_calls,
    has_strace,
)
from benchmarks.counts.server import FILE_VARIABLE
from benchmarks.frontend.cases import PACE, PLAIN, SHORT
from benchmarks.frontend.load import Cost, StreamRequest, missing, whole, wrk
from benchmarks.frontend.parts import Author, Part, call, cue, plain
from benchmarks.frontend.requests import APIS, body
from benchmarks.frontend.servers import (
    Frontend,
    Launch,
    dovetail_frontend,
    model_folder,
    steps_frontend,
)
from dovetail_tokenizers import load_tokenizer

CASES = ("text", "call", "stream", "whole")
TITLES = {
    "text": "a token of text",
    "call": "a token inside a call",
    "stream": f"a streamed turn of {SHORT} tokens",
    "whole": "the same turn, not streamed",
}


class WholeRequest(StreamRequest):
    """A request whose response is not streamed."""

    @property
    def body(self) -> bytes:
        fields = json.loads(body(self.api, NAME, self.cue, self.max_tokens))
        return json.dumps({**fields, "stream": False}).encode()


@dataclass
class Counts:
    """What one case costs per unit: a token or a turn."""

    wakeups: float = 0.0
    cpu_us: float = 0.0
    system: dict[str, float] = field(default_factory=dict)
    python: dict[str, float] = field(default_factory=dict)
    native: dict[str, float] = field(default_factory=dict)

    def row(self) -> list[str]:
        python, native = sum(self.python.values()), sum(self.native.values())
        system = f"{sum(self.system.values()):.2f}" if self.system else "-"
        return [
            f"{python:.1f}",
            f"{native:.1f}",
            system,
            f"{self.wakeups:.2f}",
            f"{self.cpu_us:.0f}",
        ]


@dataclass(frozen=True)
class Bench:
    """A running server, and how much load it gets."""

    frontend: Frontend
    scratch: Path
    streams: int
    seconds: int

    def measure(self, case: str, api: str) -> Counts:
        """Run a case three times: undisturbed, with strace, and with a profiler."""
        self._run(case, api)  # caches are warm afterwards
        pid, per = self.frontend.pid, _units(case)
        found = Counts()
        before = count_wakeups(pid)
        cost = self._run(case, api)
        found.wakeups = (count_wakeups(pid) - before) / per(cost)
        found.cpu_us = cost.spent.total * 1e6 / per(cost)
        if has_strace():
            with counting_system_calls(pid, self.scratch) as system:
                cost = self._run(case, api)
            found.system = _divide(system, per(cost))
        with counting_calls(pid, self.scratch / "calls.json") as calls:
            cost = self._run(case, api)
        found.python = _divide(calls.python, per(cost))
        found.native = _divide(calls.native, per(cost))
        return found

    def _run(self, case: str, api: str) -> Cost:
        if case in ("text", "call"):
            return whole(self.frontend, StreamRequest(api, cue(f"paced-{case}")), self.streams, 1)
        request = StreamRequest if case == "stream" else WholeRequest
        return wrk(self.frontend, request(api, cue("short")), 1, self.seconds)


def _units(case: str) -> Callable[[Cost], float]:
    """Return what a case is counted by: tokens, or responses."""
    if case in ("text", "call"):
        return lambda cost: max(1, cost.tokens)
    return lambda cost: max(1, cost.responses)


def _divide(counts: Counter[str], units: float) -> dict[str, float]:
    return {name: count / units for name, count in counts.most_common()}


@contextmanager
def running(options: argparse.Namespace, scratch: Path) -> Iterator[Bench]:
    """Run the engine and the server."""
    model = model_folder(scratch / "model")
    author = Author(load_tokenizer(model))
    words = author.first_tokens(PLAIN, plain(8))
    parts = [
        Part("paced-text", words, PACE, in_step=options.steps),
        Part("paced-call", author.sized(PLAIN, call), PACE, in_step=options.steps),
        Part("short", author.first_tokens(SHORT, words)),
    ]
    variables = {"PYTHONPATH": str(ROOT), FILE_VARIABLE: str(scratch / "calls.json")}
    launch = Launch(("-m", "benchmarks.counts.server"), variables)
    with (
        steps_frontend(parts, author, scratch, launch)
        if options.steps
        else dovetail_frontend(parts, model, scratch, launch)
    ) as frontend:
        yield Bench(frontend, scratch, options.streams, options.seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    lacking = missing()
    if lacking:
        print(lacking, file=sys.stderr)
        return 2
    rows = []
    with (
        TemporaryDirectory(prefix="dovetail-counts-") as folder,
        running(options, Path(folder)) as bench,
    ):
        for case in options.only:
            for api in options.api:
                counts = bench.measure(case, api)
                rows.append([f"{TITLES[case]}, {api}", *counts.row()])
                print("  ".join(rows[-1]), flush=True)
                _print_functions(counts, options.functions)
    head = ("per", "Python calls", "C calls", "system calls", "wake-ups", "CPU µs")
    result = report.Result(
        "counts",
        "Calls, system calls and wake-ups",
        report.table(head, rows),
        f"{'An engine behind the step protocol' if options.steps else 'An engine over HTTP'}, "
        f"{options.streams} streams at {PACE:.0f} tokens/s, each of {PLAIN} tokens; their share of "
        "the cost of a request is included. Turns: one connection. Calls are those of the event "
        "loop's thread; wake-ups are waits of all threads.\n",
    )
    print(f"\n{result.numbers}\n{result.reading}\n{report.stamp()}")
    if options.write:
        report.write([result])
    return 0


def _print_functions(counts: Counts, functions: int) -> None:
    """Print the functions with the most calls, and the system calls."""
    if not functions:
        return
    packages: Counter[str] = Counter()
    for name, count in counts.python.items():
        packages[package_of(name)] += count  # type: ignore[assignment]
    for calls in (dict(packages.most_common()), counts.python, counts.native, counts.system):
        for name, count in list(calls.items())[:functions]:
            print(f"  {count:8.2f}  {name}")
        print()


def package_of(name: str) -> str:
    """Return the package of a function: the folder of its file, for libraries the first one."""
    folders = name.partition(":")[0].split("/")
    if "lib" in folders:
        return "standard library"
    return "/".join(folders[: 2 if folders[0].startswith("dovetail") else 1])


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counts", description=__doc__)
    add = parser.add_argument
    add("--only", action="append", choices=CASES, help="run only these cases (repeatable)")
    add("--api", action="append", choices=APIS, help="run only these APIs (repeatable)")
    add("--steps", action="store_true", help="an engine behind the step protocol, in step")
    add("--streams", type=int, default=32, help="number of paced streams")
    add("--seconds", type=int, default=4, help="duration of the short turns")
    add("--functions", type=int, default=0, help="list this many functions with the most calls")
    add("--write", action="store_true", help="write the results to RESULTS.md")
    options = parser.parse_args(arguments)
    if options.write and (options.only or options.api or options.steps):
        parser.error("--write requires a complete run, without --only, --api and --steps")
    options.only, options.api = options.only or CASES, options.api or APIS
    return options


if __name__ == "__main__":
    sys.exit(main())
