"""Classify each prompt by whether it continues an earlier prompt and its output exactly."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

from dovetail.engines.scripted.engine import RecordedGeneration

BLOCK = 16  # tokens per block of the scripted engine's cache

Kind = Literal["new", "exact", "again"]


@dataclass(frozen=True)
class Row:
    """A request. `shared` counts the tokens that it shares with the request that it continues.

    `exact`: it starts with a complete earlier prompt and its generated tokens. `again`: only with a
    complete earlier prompt, without its output (a retry, or a turn that the client dropped). `new`:
    with neither, like the first request of a conversation.
    """

    kind: Kind
    prompt: int
    output: int
    cached: int
    source: int | None
    shared: int


ReportRun = Callable[[Sequence[Row]], None]  # the type of the fixture `report_run`


def classify(generations: Sequence[RecordedGeneration]) -> list[Row]:
    """Return one row per request, in order."""
    found = []
    for at, one in enumerate(generations):
        best = max(
            (_continuation(one, generations[i], i) for i in range(at)),
            key=lambda row: (row.kind == "exact", row.shared),
            default=_row("new", one, None, 0),
        )
        found.append(best)
    return found


def assert_exact(
    generations: Sequence[RecordedGeneration],
    *,
    new: int,
    again: int = 0,
    cold: Collection[int] = (),
) -> list[Row]:
    """Check that every request continues exactly, except these numbers of `new` and `again`.

    Continued prefixes must have been in the engine's cache, to the block. `cold` lists the numbers
    of the requests that were the first of a new engine, whose cache was empty.
    """
    found = classify(generations)
    shown = table(found)
    kinds = Counter(row.kind for row in found)
    assert (kinds["new"], kinds["again"]) == (new, again), shown
    for at, row in enumerate(found):
        if row.kind == "exact" and at not in cold:
            assert row.cached >= row.shared - row.shared % BLOCK - BLOCK, shown
    return found


def table(found: Sequence[Row]) -> str:
    """Format the rows as a table."""
    drawn = Table("#", "kind", "prompt", "output", "goes on from", "kept", "cached", "new tokens")
    for at, row in enumerate(found):
        source = "" if row.source is None else f"#{row.source}"
        figures = (row.shared, row.cached, row.prompt - row.shared)
        drawn.add_row(
            f"{at}",
            row.kind,
            f"{row.prompt:,}",
            f"{row.output:,}",
            source,
            *map("{:,}".format, figures),
        )
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get()


def count_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _continuation(one: RecordedGeneration, before: RecordedGeneration, number: int) -> Row:
    whole = before.prompt + before.output
    shared = count_common(one.prompt, whole)
    if shared >= len(whole) - 1:  # the token that ended the turn may be the template's
        return _row("exact", one, number, shared)
    return _row("again" if shared >= len(before.prompt) else "new", one, number, shared)


def _row(kind: Kind, one: RecordedGeneration, source: int | None, shared: int) -> Row:
    source = None if kind == "new" else source
    return Row(kind, len(one.prompt), len(one.output), one.cached, source, shared)
