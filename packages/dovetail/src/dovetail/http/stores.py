"""Numbers of the stores, read when somebody asks for them."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from dovetail.storage.faults import StoreFaults


class StoreCollector(Collector):
    """Shows what the stores of turns and of responses could not do."""

    def __init__(self, stores: Sequence[StoreFaults]) -> None:
        self._stores = stores

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        failed = CounterMetricFamily(
            "dovetail_store_failures",
            "Questions that a store did not answer.",
            labels=_STORE_LABELS,
        )
        lost = CounterMetricFamily(
            "dovetail_store_lost", "Turns or responses that were not kept.", labels=_STORE_LABELS
        )
        waiting = GaugeMetricFamily(
            "dovetail_store_waiting",
            "What is kept once the store is there again.",
            labels=_STORE_LABELS,
        )
        away = GaugeMetricFamily(
            "dovetail_store_away",
            "1 where a store did not answer when last asked.",
            labels=_STORE_LABELS,
        )
        for store in self._stores:
            failed.add_metric([store.name], store.failures)
            lost.add_metric([store.name], store.lost)
            waiting.add_metric([store.name], store.pending)
            away.add_metric([store.name], store.unavailable)
        return failed, lost, waiting, away


_STORE_LABELS = ("store",)
