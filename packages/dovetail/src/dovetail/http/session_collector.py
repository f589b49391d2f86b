"""Metrics of session scheduling, collected at each scrape."""

from collections import Counter
from collections.abc import Iterable
from typing import get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dovetail.pipeline.registry import ModelRegistry
from dovetail.routing.session_admission import SchedulingStats, SessionAdmission
from dovetail.routing.session_turns import SessionStatus

#: The states of sessions: see `/admin/sessions`.
STATES: tuple[SessionStatus, ...] = get_args(SessionStatus)
_HISTOGRAMS = {
    "waits": ("dovetail_session_wait_seconds", "Time that turns waited for room in the KV cache."),
    "predicted": (
        "dovetail_tool_time_predicted_seconds",
        "Predicted time between two turns of a session, for turns with a prediction.",
    ),
    "actual": (
        "dovetail_tool_time_actual_seconds",
        "Actual time between two turns of a session, for turns with a prediction.",
    ),
}


class SessionCollector(Collector):
    """Collect metrics of the models whose sessions are scheduled."""

    def __init__(self, service: ModelRegistry) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        sessions = GaugeMetricFamily(
            "dovetail_sessions", "Sessions by state, with scheduling.", labels=("model", "state")
        )
        capacity = GaugeMetricFamily(
            "dovetail_session_capacity_tokens",
            "Tokens of the KV cache that sessions may use.",
            labels=("model", "replica"),
        )
        suspended = GaugeMetricFamily(
            "dovetail_session_scheduling_suspended",
            "1 while no turn waits, because waiting would save no prefill.",
            labels=("model", "replica"),
        )
        forced = CounterMetricFamily(
            "dovetail_session_waits_expired",
            "Turns that ran without room after the longest wait.",
            labels=("model",),
        )
        histograms = {
            name: HistogramMetricFamily(metric, help, labels=("model",))
            for name, (metric, help) in _HISTOGRAMS.items()
        }
        for entry in self._service.base_models():
            if (admission := entry.engine.sessions) is None:
                continue
            _count_states(sessions, entry.name, admission)
            for index, scheduler in admission.schedulers():
                suspended.add_metric([entry.name, str(index)], scheduler.is_suspended)
                if scheduler.capacity_tokens is not None:
                    capacity.add_metric([entry.name, str(index)], scheduler.capacity_tokens)
            forced.add_metric([entry.name], admission.expired_waits)
            _add_distributions(histograms, entry.name, admission.stats)
        return sessions, capacity, suspended, forced, *histograms.values()


def _count_states(metric: GaugeMetricFamily, model: str, admission: SessionAdmission) -> None:
    counts = Counter(state.status for _, state in admission.sessions())
    for state in STATES:
        metric.add_metric([model, state], counts.get(state, 0))


def _add_distributions(
    histograms: dict[str, HistogramMetricFamily], model: str, stats: SchedulingStats
) -> None:
    for name, metric in histograms.items():
        distribution = getattr(stats, name)
        metric.add_metric([model], distribution.buckets(), distribution.sum)
