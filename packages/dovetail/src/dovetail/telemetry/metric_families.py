"""Counters, gauges and histograms that cost one call and one dictionary access per update.

The metrics of `prometheus_client` check labels and exemplars and take a lock at every update, a
tenth of the cost of a short request. All updates of a process run on its event loop, so plain
dictionaries suffice. The library still renders them: each family is a collector of its registry.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

LabelValues = tuple[str, ...]


class CounterFamily(Collector):
    """A counter for each combination of label values. Without labels it starts at 0."""

    __slots__ = ("_help", "_labels", "_name", "_values")

    def __init__(
        self, registry: CollectorRegistry, name: str, help: str, labels: Sequence[str]
    ) -> None:
        self._name, self._help, self._labels = name, help, labels
        self._values: dict[LabelValues, float] = {} if labels else {(): 0.0}
        registry.register(self)

    def add(self, labels: LabelValues = (), amount: float = 1) -> None:
        """Add to the counter with these label values. An amount of 0 creates it."""
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        yield family


class GaugeFamily(Collector):
    """A gauge for each combination of label values. Without labels it starts at 0."""

    __slots__ = ("_help", "_labels", "_name", "_read", "_values")

    def __init__(
        self, registry: CollectorRegistry, name: str, help: str, labels: Sequence[str]
    ) -> None:
        self._name, self._help, self._labels = name, help, labels
        self._values: dict[LabelValues, float] = {} if labels else {(): 0.0}
        self._read: Callable[[], float] | None = None
        registry.register(self)

    def add(self, labels: LabelValues = (), amount: float = 1) -> None:
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def set(self, value: float, labels: LabelValues = ()) -> None:
        self._values[labels] = value

    def set_function(self, read: Callable[[], float]) -> None:
        """Read the value of the gauge without labels when it is collected."""
        self._read = read

    def collect(self) -> Iterable[GaugeMetricFamily]:
        if self._read is not None:
            self.set(self._read())
        family = GaugeMetricFamily(self._name, self._help, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        yield family


class HistogramFamily(Collector):
    """A histogram for each combination of label values."""

    __slots__ = ("_bounds", "_counts", "_help", "_labels", "_name", "_sums")

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        help: str,
        labels: Sequence[str],
        bounds: tuple[float, ...],
    ) -> None:
        self._name, self._help, self._labels = name, help, labels
        self._bounds = bounds
        self._counts: dict[LabelValues, list[int]] = {}  # per bound, and one above
        self._sums: dict[LabelValues, float] = {}
        registry.register(self)

    def observe(self, labels: LabelValues, value: float) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
            self._sums[labels] = 0.0
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for labels, counts in self._counts.items():
            family.add_metric(labels, cumulate_buckets(self._bounds, counts), self._sums[labels])
        yield family


def cumulate_buckets(bounds: Iterable[float], counts: list[int]) -> list[tuple[str, float]]:
    """Return the cumulative counts by upper bound, as Prometheus expects them."""
    total, buckets = 0, []
    for bound, count in zip([*map(str, map(float, bounds)), "+Inf"], counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
