"""Metrics of replicas and stores, collected at each scrape."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from dovetail.engines.engine import FactReporter
from dovetail.pipeline.registry import ModelRegistry
from dovetail.routing.pool import ReplicaPool
from dovetail.storage.faults import StoreFaults


class ReplicaCollector(Collector):
    """Collect metrics of the replica pools."""

    def __init__(self, service: ModelRegistry) -> None:
        self._service = service

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        up = GaugeMetricFamily(
            "dovetail_replicas_up", "Replicas that accept requests.", labels=_MODEL_LABELS
        )
        restarts = CounterMetricFamily(
            "dovetail_replica_restarts", "Engine restarts.", labels=_MODEL_LABELS
        )
        warmed = CounterMetricFamily(
            "dovetail_warmed_prompts", "Prompts that were prefilled ahead.", labels=_MODEL_LABELS
        )
        engine_metrics = [
            GaugeMetricFamily(name, help, labels=_REPLICA_LABELS)
            for name, help in _ENGINE_METRICS.values()
        ]
        for name, pool in self._pools():
            for fact, metric in zip(_ENGINE_METRICS, engine_metrics, strict=True):
                for index, value in _reported(pool, fact):
                    metric.add_metric([name, str(index)], value)
            up.add_metric([name], pool.available_count)
            restarts.add_metric([name], sum(replica.restarts for replica in pool.replicas))
            warmed.add_metric([name], pool.warmed_prompts)
        fallbacks = CounterMetricFamily(
            "dovetail_model_fallbacks",
            "Requests that a fallback served because no replica of their model was available.",
            labels=("model", "fallback"),
        )
        for names, number in self._service.fallbacks.items():
            fallbacks.add_metric(names, number)
        return up, restarts, warmed, fallbacks, *engine_metrics, *self._collect_indexes()

    def _pools(self) -> Iterator[tuple[str, ReplicaPool]]:
        return ((model.name, model.engine) for model in self._service.base_models())

    def _collect_indexes(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        """Collect what the indexes of KV caches know."""
        replicas = GaugeMetricFamily(
            "dovetail_kv_index_replicas",
            "Replicas by the source of what is known of their KV cache: events or requests.",
            labels=("model", "source"),
        )
        blocks = GaugeMetricFamily(
            "dovetail_kv_index_blocks", "Blocks in the approximate index.", labels=_MODEL_LABELS
        )
        capacity = GaugeMetricFamily(
            "dovetail_kv_index_max_event_blocks",
            "Blocks of the KV caches whose events are indexed, which bound the size of the index.",
            labels=_MODEL_LABELS,
        )
        failures = CounterMetricFamily(
            "dovetail_kv_event_failures",
            "Prompts whose KV events did not arrive after the prefill, and failed index queries.",
            labels=_MODEL_LABELS,
        )
        for name, pool in self._pools():
            status = pool.index.status
            sources = Counter(status.sources.values())
            for source in ("events", "requests"):
                replicas.add_metric([name, source], sources[source])
            blocks.add_metric([name], status.blocks)
            capacity.add_metric([name], status.max_event_blocks)
            failures.add_metric([name], status.event_failures)
        return replicas, blocks, capacity, failures


_MODEL_LABELS = ("model",)
_REPLICA_LABELS = ("model", "replica")
#: The metric and its help text for each fact that engines report about themselves.
_ENGINE_METRICS = {
    "running": ("dovetail_engine_requests_running", "Requests that the engine generates for."),
    "waiting": ("dovetail_engine_requests_waiting", "Requests that wait in the engine."),
    "cache_usage": ("dovetail_engine_kv_cache_usage", "Used fraction of the engine's KV cache."),
}


def _reported(pool: ReplicaPool, fact: str) -> Iterator[tuple[int, float]]:
    """Yield the value of a fact for each replica that reports it."""
    for replica in pool.replicas:
        engine = replica.engine
        value = engine.reported_facts.get(fact) if isinstance(engine, FactReporter) else None
        if value is not None:
            yield replica.index, float(value)


class StoreCollector(Collector):
    """Collect failures of the ledger store and the response store."""

    def __init__(self, stores: Sequence[StoreFaults]) -> None:
        self._stores = stores

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        failed = CounterMetricFamily(
            "dovetail_store_failures",
            "Failed operations of a store.",
            labels=_STORE_LABELS,
        )
        lost = CounterMetricFamily(
            "dovetail_store_lost",
            "Turns or responses that could not be stored.",
            labels=_STORE_LABELS,
        )
        late = CounterMetricFamily(
            "dovetail_store_late",
            "Turns or responses that were not stored yet when their response ended.",
            labels=_STORE_LABELS,
        )
        pending = GaugeMetricFamily(
            "dovetail_store_waiting",
            "Turns or responses that wait until the store is available again.",
            labels=_STORE_LABELS,
        )
        unavailable = GaugeMetricFamily(
            "dovetail_store_away",
            "1 if the store was unreachable at its last operation, else 0.",
            labels=_STORE_LABELS,
        )
        gap = GaugeMetricFamily(
            "dovetail_store_gap_timestamp_seconds",
            "Time of the last turn that the store does not know of, or 0.",
            labels=_STORE_LABELS,
        )
        for store in self._stores:
            gap.add_metric([store.name], store.gap_at)
            failed.add_metric([store.name], store.failures)
            lost.add_metric([store.name], store.lost)
            late.add_metric([store.name], store.late)
            pending.add_metric([store.name], store.pending)
            unavailable.add_metric([store.name], store.unavailable)
        return failed, lost, late, pending, unavailable, gap


_STORE_LABELS = ("store",)
