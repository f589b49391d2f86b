"""What does a streamed token cost in the frontend, compared with other frontends in one run?"""

import argparse
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import report
from benchmarks.frontend import cases, cpu, embedded, latency, many_streams, rounds, tables
from benchmarks.frontend.findings import ENGINE, Findings
from benchmarks.frontend.limits import raise_file_limit
from benchmarks.frontend.load import StreamRequest, missing, wrk
from benchmarks.frontend.parts import Author
from benchmarks.frontend.plot import plot
from benchmarks.frontend.requests import APIS
from benchmarks.frontend.servers import (
    Frontend,
    dovetail_frontend,
    dynamo_frontend,
    model_folder,
    steps_frontend,
    vllm_frontend,
)
from benchmarks.prepare import over_http
from benchmarks.prepare.inside import TARGET
from dovetail_tokenizers import load_tokenizer

#: Many streams are measured first: a process does not return memory that it once allocated.
PARTS = ("many", "paced", "saturated", "lengths", "turns", "cold", "latency", "steps")
#: The parts with the targets of docs/speed.md, which take less than ten minutes.
DEFAULT_PARTS = ("many", "paced", "turns", "cold", "latency", "steps")
FULL_ROUNDS = 3
#: vllm: its API server at maximum speed; embedded: the same, compared with the embedded vLLM.
AGAINST = ("dynamo", "vllm", "embedded")
PAGE = report.PAGE.parent / tables.PLOT
QUICK = 0.2  # fraction of the usual time


class Bench:
    """One run: the running servers, and the results so far."""

    def __init__(self, options: argparse.Namespace, author: Author) -> None:
        self._options = options
        self._author = author
        self._parts = {part.name: part for part in cases.parts(author)}
        self._scale = QUICK if options.quick else 1.0
        self.rounds = 1 if options.quick else options.rounds
        self._apis = APIS if options.full else APIS[:1]  # of the parts that take a minute per API
        self._frontends: list[Frontend] = []
        self._scratch = Path()
        self.found = Findings([])

    def run(self, scratch: Path) -> None:
        """Run the chosen parts on servers that are started for them."""
        parts, model = list(self._parts.values()), scratch / "model"
        self._scratch = scratch
        with ExitStack() as stack:
            start = stack.enter_context
            self._frontends = [start(dovetail_frontend(parts, model, scratch))]
            if "dynamo" in self._options.against:
                self._frontends.append(start(dynamo_frontend(parts, self._author, scratch)))
            self.found.servers = [frontend.name for frontend in self._frontends]
            for name in self._options.only:
                print(f"{name}:", flush=True)
                getattr(self, f"_{name}")()

    def _paced(self) -> None:
        """Measure paced streams, in a full run with twice the rounds: they are disturbed most."""
        full = self._options.full
        self._drive(cases.PACED if full else cases.REMOTE, 2 if full else 1)

    def _saturated(self) -> None:
        self._drive(cases.SATURATED)

    def _turns(self) -> None:
        self._drive((cases.TURNS,))

    def _drive(self, chosen: tuple[cases.Case, ...], times: int = 1) -> None:
        rounds.drive(self.found.costs, self._frontends, chosen, times * self.rounds, self._scale)
        if self._options.full:
            rounds.frames(self.found.costs, self._frontends, chosen)

    def _cold(self) -> None:
        """Measure new conversations with a long history, which no server knows."""
        for api in over_http.APIS:
            for frontend in self._frontends:
                spent = over_http.measure_cold(frontend, api, TARGET)
                self.found.cold[frontend.name, api] = spent
                print(f"  {frontend.name} {api}: {spent:.1f} ms", flush=True)

    def _lengths(self) -> None:
        rounds.lengths(self.found.costs, self._frontends, self.rounds, self._scale)

    def _steps(self) -> None:
        """Measure an engine behind the step protocol, next to the same frontends as before."""
        chosen = (*cases.IN_STEP, cases.TURNS)
        with steps_frontend(list(self._parts.values()), self._author, self._scratch) as ours:
            servers = [ours, *self._frontends[1:]]
            rounds.drive(self.found.costs, servers, chosen, self.rounds, self._scale)
            if self._options.full:
                rounds.frames(self.found.costs, servers, cases.IN_STEP)

    def _latency(self) -> None:
        for _ in range(self.rounds):
            self._time(ENGINE, self._frontends[0].engine or 0, "completions")
            for frontend in self._frontends if self._options.full else self._frontends[:1]:
                for api in self._apis:
                    self._time(frontend.name, frontend.port, api)
        step = self._parts["call-step"]
        for frontend in self._frontends:
            for api in self._apis:
                behind = latency.tokens_behind(frontend, api, step, self._author)
                self.found.behind[frontend.name, api] = behind

    def _time(self, server: str, port: int, api: str) -> None:
        tokens = round(cases.PACE * cases.TIMED_SECONDS * self._scale)
        paced = StreamRequest(api, self._parts["long-paced"].cue, tokens)
        short = StreamRequest(api, self._parts["short"].cue)
        self.found.note_late(server, api, latency.late(port, paced, short, cases.MANY))

    def _many(self) -> None:
        slow = [part for name, part in self._parts.items() if name.startswith("slow-")]
        streams = 50 if self._options.quick else self._options.streams
        ours = self._frontends[0]
        for api in self._apis:
            self.found.slow.append((ours.name, api, many_streams.slow(ours, api, slow, streams)))
            few = max(1, streams // 20)
            seen = many_streams.unread(ours, api, self._parts["long"], few)
            self.found.unread.append((ours.name, api, seen))
        for other in self._frontends[1:]:
            seen = many_streams.slow(other, APIS[0], slow, streams)
            self.found.slow.append((other.name, APIS[0], seen))

    def measure_vllm(self, scratch: Path) -> None:
        """Measure vLLM's own server, with a tiny model on the CPU: one workload, for scale."""
        (case,) = (c for c in cases.SATURATED if (c.part, c.streams) == ("plain", cases.FOR_SCALE))
        self.found.servers.append("vllm")
        with vllm_frontend(scratch) as frontend:
            for api in case.apis:
                request = StreamRequest(api, self._parts[case.part].cue, cases.PLAIN)
                seconds = max(2, round(cases.VLLM_SECONDS * self._scale))
                cost = wrk(frontend, request, case.streams, seconds)
                self.found.costs.add((frontend.name, case.name, api), cost)

    def measure_embedded(self, scratch: Path) -> None:
        """Measure the embedded vLLM and vLLM's API server with the same model."""
        embedded.compare(self.found.costs, scratch, self.rounds)


def main(arguments: list[str] | None = None) -> int:
    options = _read(arguments)
    lacking = missing()
    if lacking:
        print(lacking, file=sys.stderr)
        return 2
    raise_file_limit()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    before = cpu.load()
    with TemporaryDirectory(prefix="dovetail-bench-") as folder:
        scratch = Path(folder)
        bench = Bench(options, Author(load_tokenizer(model_folder(scratch / "model"))))
        bench.run(scratch)
        if "vllm" in options.against:
            bench.measure_vllm(scratch)
        if "embedded" in options.against:
            bench.measure_embedded(scratch)
    result = tables.result(bench.found, bench.rounds, f"{before}; {cpu.load()}")
    print(f"\n{result.numbers}\n{report.stamp()}")
    if options.write:
        report.write([result])
        _write_plot(bench.found)
    return 0


def _write_plot(found: Findings) -> None:
    curves = {
        name: points for api in APIS[:2] for name, points in tables.curves(found, api).items()
    }
    if curves:
        title = "Frontend CPU per token inside a tool call"
        PAGE.write_text(plot(title, "tokens of the call", "µs per token", curves), "utf-8")


def _read(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frontend", description=__doc__)
    add = parser.add_argument
    add("--against", action="append", default=[], choices=AGAINST, help="repeatable")
    add("--only", action="append", choices=PARTS, help="run only these parts (repeatable)")
    add("--full", action="store_true", help="all parts, APIs and rounds, which takes an hour")
    add(
        "--rounds", type=int, help=f"number of rounds, of which the best counts; 1 or {FULL_ROUNDS}"
    )
    add("--streams", type=int, default=2_000, help="number of concurrent slow streams")
    add("--quick", action="store_true", help="run everything briefly; the numbers mean little")
    add("--write", action="store_true", help="write the results to RESULTS.md, and the plot")
    options = parser.parse_args(arguments)
    if options.write and (options.only or not options.full):
        parser.error("--write requires a complete run: --full without --only")
    options.only = options.only or (PARTS if options.full else DEFAULT_PARTS)
    options.rounds = options.rounds or (FULL_ROUNDS if options.full else 1)
    return options


if __name__ == "__main__":
    sys.exit(main())
