"""Latency of tokens: with the engine alone, and through a frontend."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from benchmarks.frontend import client
from benchmarks.frontend.client import Seen
from benchmarks.frontend.load import StreamRequest
from benchmarks.frontend.parts import BEGINS, VALUE, Author, Part
from benchmarks.frontend.servers import Frontend

EDGE = 8  # events at both ends of a stream that are not tokens
TURNS = 20  # single requests, one after the other


@dataclass(frozen=True)
class Late:
    """Milliseconds between the tokens of many streams, and to the first token of single ones."""

    median: float
    p99: float
    first_byte: float
    first_token: float


def late(port: int, paced: StreamRequest, short: StreamRequest, streams: int) -> Late:
    """Measure paced streams, all read to their ends; then short turns, one at a time."""
    many = client.run(paced.plan(port, streams, spread=1.0))
    gaps = [gap for one in many for gap in one.gaps[EDGE:-EDGE]]
    single = client.run(short.plan(port, times=TURNS, keep=True))
    first = percentile([one.first for one in single], 0.5)
    tokens = percentile([arrived(one, BEGINS) - one.sent for one in single], 0.5)
    return Late(percentile(gaps, 0.5), percentile(gaps, 0.99), first, tokens)


def arrived(seen: Seen, word: str) -> int:
    """Return when a word arrived."""
    found = re.search(rf"\b{word}\b".encode(), seen.raw)
    if found is None:
        raise ValueError(f"{word!r} did not arrive")
    reads = zip(seen.times, accumulate(seen.sizes), strict=True)
    return next(time for time, end in reads if end >= found.end())


def tokens_behind(frontend: Frontend, api: str, part: Part, author: Author) -> int:
    """Count the engine's tokens between a value's first token and its arrival at the client.

    The engine's tokens are far apart in time, and the last one ends the stream.
    """
    seen = client.run(StreamRequest(api, part.cue).plan(frontend.port, keep=True))[0]
    total = len(author.ids(part.text)) + 1  # the end of the turn is a token, too
    starts = len(author.ids(part.text[: part.text.index(VALUE)]))
    left = (seen.times[-1] - arrived(seen, VALUE)) / 1e9 * part.rate
    return max(0, round(total - 1 - left) - starts)


def percentile(values: Iterable[int], share: float) -> float:
    """Return a percentile of nanoseconds, in milliseconds; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6 if ordered else 0.0
