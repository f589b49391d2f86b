"""The tables of the results page."""

from collections.abc import Iterable, Sequence

from benchmarks.frontend import embedded
from benchmarks.frontend.cases import IN_STEP, LENGTHS, PACED, SATURATED, SLOW, TURNS, Case
from benchmarks.frontend.findings import Findings
from benchmarks.frontend.load import Cost
from benchmarks.frontend.many_streams import Many
from benchmarks.frontend.requests import APIS
from benchmarks.frontend.targets import OURS, STEPS, THEIRS, further_targets, targets
from benchmarks.prepare.inside import TARGET
from benchmarks.report import Result, table

PLOT = "frontend/call-length.svg"
INTRO = """\
Microseconds of CPU time (user and system, all threads, fields 14 and 15 of /proc/PID/stat, in ticks
of 10 ms) that the frontend's process uses per streamed token; its engine and its client are other
processes. Template and tokenizer are Qwen3's, the parsers are `hermes` and `qwen3`, and each
request has a tool. Dovetail is in front of the scripted engine, which serves vLLM's completions
protocol; Dynamo's frontend is in front of a worker that outputs the same tokens at the same pace,
one yield per token. The client is wrk; for complete calls, latency and many streams it is a lean
client of ours. The servers are measured alternately, and the best round of each counts. *Tokens per
frame*: tokens per event of the stream, from a sample. Inside a call, Dynamo writes nothing until
the call is complete, and Dovetail writes each token. At maximum speed, Dovetail's engine generates
100,000 tokens/s and more, and Dynamo's worker about a third of that through its bindings: its
tokens arrive less densely, so that fewer share an event.
"""
GROWTH = f"""
Growth: a token from 20k to 85k relative to one from 1k to 4.5k, which excludes the cost of the
request.

![Cost of a token by the length of the call]({PLOT})
"""


def result(found: Findings, rounds: int, busy: str) -> Result:
    """Build the section of RESULTS.md."""
    sections = {
        "Paced, one frame per token": costs(found, PACED),
        "At maximum speed": costs(found, SATURATED),
        "Calls by length, 4 streams, read to their ends": by_length(found),
        "Short turns": turns(found),
        f"New conversations of {TARGET:,} tokens, in milliseconds": cold(found),
        "An engine behind the step protocol": steps(found),
        "Embedded vLLM, and vLLM's API server": embedded_vllm(found),
        "Latency in milliseconds": lateness(found),
        "Many streams": many(found),
        "Targets": wanted(found),
    }
    loads = f"Load of the machine before and after: {busy}."
    parts = [INTRO, f"Rounds: {rounds}. {loads}\n"]
    for title, text in sections.items():
        if text:
            parts += [f"### {title}\n", text]
    return Result("frontend", "A streamed token in the frontend", "\n".join(parts), "")


def costs(found: Findings, cases: Iterable[Case]) -> str:
    """Build a table of each workload and API: all servers, the ratio to Dynamo, and frames."""
    ratio = [f"{OURS} / {other}" for other in found.servers[1:]]
    head = ["workload", "API", *found.servers, *ratio]
    head += [f"tokens per frame, {server}" for server in found.servers]
    rows = []
    for case in cases:
        for api in case.apis:
            best = [found.costs.best(server, case.name, api) for server in found.servers]
            if not any(best):
                continue
            joined = [found.costs.joined.get((s, case.name, api)) for s in found.servers]
            ratios = [found.costs.ratio(OURS, s, case.name, api) for s in found.servers[1:]]
            rows.append([case.title, api, *map(_us, best), *map(_number, ratios)])
            rows[-1] += map(_number, joined)
    return _table(head, rows)


def by_length(found: Findings) -> str:
    head = ["server", "API", *(f"{n:,}" for n in LENGTHS), "growth"]
    rows = []
    for server in found.servers:
        for api in APIS:
            best = [found.costs.best(server, f"whole call {n}", api) for n in LENGTHS]
            if any(best):
                growth = found.costs.growth(server, api)
                rows.append([server, api, *map(_us, best), _number(growth)])
    return _table(head, rows) + GROWTH if rows else ""


def turns(found: Findings) -> str:
    head = ["server", "API", "requests/s", "frontend µs per request"]
    rows = []
    for server in (*found.servers, STEPS):
        for api in APIS:
            best = found.costs.best(server, TURNS.name, api)
            if best and best.responses:
                rate = f"{best.responses / best.seconds:.0f}"
                rows.append([server, api, rate, f"{best.request_us:.0f}"])
    return _table(head, rows)


def cold(found: Findings) -> str:
    """Build a table of new conversations: milliseconds of CPU time of the frontend."""
    apis = dict.fromkeys(api for _, api in found.cold)
    rows = [[api, *(f"{found.cold[name, api]:.1f}" for name in found.servers)] for api in apis]
    return _table(["API", *found.servers], rows)


def steps(found: Findings) -> str:
    """Build a table of the engine behind the step protocol: the frontend, its child, Dynamo."""
    head = ["workload", "API", "frontend", "engine's process", THEIRS, "ratio"]
    rows = []
    for case in IN_STEP:
        for api in case.apis:
            ours = found.costs.best(STEPS, case.name, api)
            if ours is not None:
                split = [f"{ours.us - ours.child_us:.1f}", f"{ours.child_us:.1f}"]
                theirs = found.costs.best(THEIRS, case.name, api)
                ratio = found.costs.ratio(STEPS, THEIRS, case.name, api)
                rows.append([case.title, api, *split, _us(theirs), _number(ratio)])
    return _table(head, rows)


def embedded_vllm(found: Findings) -> str:
    head = ["streams", "frontend", "child", "vllm serve", "ratio", "tokens/s", "vllm serve's"]
    return _table(head, embedded.describe(found.costs))


def lateness(found: Findings) -> str:
    """Build a table of latencies: between tokens of 64 paced streams, and to first tokens."""
    head = ["server", "API", "between tokens, p50", "p99", "added p99", "first byte", "first token"]
    head += ["tokens between a value's start and its arrival"]
    rows = []
    for (server, api), late in found.late.items():
        added, behind = found.added(server, api), found.behind.get((server, api))
        rows.append([server, api, f"{late.median:.2f}", f"{late.p99:.2f}", _number(added)])
        rows[-1] += [f"{late.first_byte:.2f}", f"{late.first_token:.2f}"]
        rows[-1] += ["" if behind is None else f"{behind}"]
    return _table(head, rows)


def many(found: Findings) -> str:
    head = ["streams", "server", "API", "lost", "KB per stream", "µs per token"]
    head += ["p99 between tokens, ms"]
    rows = [_many(f"{SLOW:.0f} tokens per second", *one) for one in found.slow]
    rows += [_many("20k tokens, not read for a while", *one) for one in found.unread]
    return _table(head, rows)


def wanted(found: Findings) -> str:
    words = {True: "yes", False: "**no**", None: "not measured"}
    more = [one for one in further_targets(found) if one.holds is not None]
    rows = [[one.wanted, one.measured, words[one.holds]] for one in (*targets(found), *more)]
    return table(["target", "measured", "holds"], rows)


def curves(found: Findings, api: str) -> dict[str, list[tuple[float, float]]]:
    """Return the cost by length of a call, for the plot."""
    found_curves = {}
    for server in (OURS, THEIRS):
        best = [(n, found.costs.best(server, f"whole call {n}", api)) for n in LENGTHS]
        if all(cost for _, cost in best):
            found_curves[f"{server.capitalize()}, {api}"] = [(float(n), c.us) for n, c in best if c]
    return found_curves


def _many(what: str, server: str, api: str, one: Many) -> Sequence[str]:
    numbers = [str(one.lost), f"{one.kilobytes:.0f}", f"{one.us:.0f}", f"{one.p99:.0f}"]
    return [f"{one.streams:,}, {what}", server, api, *numbers]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table; return an empty string if it has no rows."""
    return table(head, rows) if rows else ""


def _us(cost: Cost | None) -> str:
    return "" if cost is None else f"{cost.us:.1f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
