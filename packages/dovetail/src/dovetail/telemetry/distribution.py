"""A histogram that costs one search per value, for values that are collected at each scrape."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Distribution:
    """Counts of values by bucket, and their sum."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts by upper bound, as Prometheus expects them."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))
