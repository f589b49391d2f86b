"""Does the cost of a chunk stay constant as a tool argument grows?"""

from collections.abc import Mapping
from functools import partial
from statistics import median

from benchmarks import texts
from benchmarks.measure import Stream, chunks, measure
from benchmarks.report import Result, table
from dovetail_model import OutputBlock
from dovetail_parsers import families
from dovetail_parsers.family import Family

SIZES = (2_000, 32_000, 200_000)
TITLE = "One tool argument"
INTRO = """\
One tool call with one string argument of the given number of characters: code, with line breaks,
quotes, tags and non-ASCII letters.
"""
LIMIT = 1.15  # cost of a chunk of the longest argument relative to the shortest
ROUNDS = 3
MORE_ROUNDS = 9  # additional rounds before a family counts as not flat

Sized = Mapping[int, Stream]


def run() -> Result:
    measured: dict[str, Sized] = {}
    for family in families():
        if family.tool_parser is not None:
            streams = {size: stream(texts.call(texts.code(size)), family) for size in SIZES}
            measure_stable(streams)
            measured[family.name] = streams
            print(f"  {family.name:<18}", *(f"{cost:>6}" for cost in costs(streams)), flush=True)
    failures = not_flat(measured, "argument")
    return Result("arguments", TITLE, numbers(measured), reading(measured), failures)


def stream(block: OutputBlock, family: Family) -> Stream:
    """Return a stream of a block, repeated so that all sizes feed the same number of chunks."""
    pieces = chunks(texts.output(block, family))
    size = len(texts.content(block)[1])
    return Stream(partial(texts.feed, family), pieces, round(max(SIZES) / size))


def measure_stable(streams: Sized) -> None:
    """Measure the sizes alternately, for longer if the costs do not look flat."""
    measure(streams.values(), ROUNDS)
    for _ in range(MORE_ROUNDS):
        if growth(streams) <= LIMIT:
            break
        measure(streams.values(), 1)


def growth(streams: Sized) -> float:
    return streams[max(streams)].us / streams[min(streams)].us


def costs(streams: Sized) -> list[str]:
    """Return table cells: the cost at each size, and the growth from the first to the last."""
    return [*(f"{streams[size].us:.2f}" for size in sorted(streams)), f"{growth(streams):.2f}"]


def not_flat(measured: Mapping[str, Sized], what: str) -> list[str]:
    return [
        f"{name}, {what}: a chunk of {max(streams):,} characters costs {growth(streams):.2f} times "
        f"a chunk of {min(streams):,}, limit {LIMIT}"
        for name, streams in measured.items()
        if growth(streams) > LIMIT
    ]


def reading(measured: Mapping[str, Sized]) -> str:
    """Summarize the numbers in a sentence."""
    steepest = max(measured, key=lambda name: growth(measured[name]))
    last = {name: streams[max(streams)].us for name, streams in measured.items()}
    cheapest, dearest = min(last, key=last.__getitem__), max(last, key=last.__getitem__)
    flat = sum(growth(streams) <= LIMIT for streams in measured.values())
    return (
        f"{flat} of {len(measured)} are flat; the steepest is {steepest} with "
        f"{growth(measured[steepest]):.2f} (limit {LIMIT}).\nA chunk of the longest costs "
        f"{last[cheapest]:.2f} ({cheapest}) to {last[dearest]:.2f} ({dearest}), "
        f"median {median(last.values()):.2f}.\n"
    )


def numbers(measured: Mapping[str, Sized]) -> str:
    head = ("family", *(f"{size // 1000}k" for size in SIZES), "200k / 2k")
    return f"{INTRO}\n{table(head, ((name, *costs(sized)) for name, sized in measured.items()))}"
