"""Prometheus metrics, named like those of Dynamo with the prefix `dovetail_`.

Every label has a closed set of values: endpoints, served models, statuses, reasons, codes. Client
input never becomes a label.
"""

from collections.abc import Callable, Iterable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from dovetail.telemetry.metric_families import (
    CounterFamily,
    GaugeFamily,
    HistogramFamily,
    cumulate_buckets,
)
from dovetail.telemetry.record import PrefixStats, RequestRecord

VERSION = version("dovetail")
_DURATION_BUCKETS_SECONDS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
    *(2.5, 5, 10, 30, 60, 120, 300, 600),
)
_TOKEN_BUCKETS = tuple(float(2**power) for power in range(4, 21))
INTER_TOKEN_BUCKETS_SECONDS = (
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.03,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
)
_INTER_TOKEN_NAME = "dovetail_inter_token_latency_seconds"
_INTER_TOKEN_HELP = "Time between two consecutive batches of tokens of a stream."
#: Help texts of the histograms.
_HISTOGRAM_HELP = {
    "time_to_first_token_seconds": "Time from the first byte of a request to the first token.",
    "request_duration_seconds": "Time from the first byte of a request to the end of its response.",
    "input_sequence_tokens": "Tokens per prompt.",
    "output_sequence_tokens": "Tokens per response, including reasoning and tool calls.",
    "cached_tokens": "Tokens per prompt that were prefix cache hits of the engine.",
    "dispatch_lead_seconds": "Time from the dispatch of a tool call to the end of its stream.",
    "queue_wait_seconds": "Time from decoding a request to its admission.",
    "server_tool_seconds": "Time of a call of a server tool.",
    "prepare_seconds": "Time from the admission of a request to its finished prompt.",
}


class InterTokenHistogram:
    """Inter-token latency of one model.

    The caller updates it in place: a call per token would be too slow.

    `counts`: one item per bound of `INTER_TOKEN_BUCKETS_SECONDS` and one above.
    `sum`: the total in seconds.
    """

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(INTER_TOKEN_BUCKETS_SECONDS) + 1)
        self.sum = 0.0

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Return the cumulative counts by upper bound, as Prometheus expects them, and the sum."""
        return cumulate_buckets(INTER_TOKEN_BUCKETS_SECONDS, self.counts), self.sum


class Metrics:
    """All metrics of one server process.

    `inflight_requests`, `queued_requests`: the values of these gauges.
    """

    inflight_requests = 0
    queued_requests = 0

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._gauge("build_info", "Always 1, with the version.", "version").set(1, (VERSION,))
        by_model = ("model",)
        self._requests = self._counter(
            "requests", "Finished requests.", "model", "endpoint", "request_type", "status"
        )
        self._inflight = self._gauge("inflight_requests", "Requests in progress.", "endpoint")
        self._queued = self._gauge("queued_requests", "Requests that wait for their first token.")
        self._time_to_first_token = self._histogram(
            "time_to_first_token_seconds", _DURATION_BUCKETS_SECONDS, *by_model
        )
        self._duration = self._histogram(
            "request_duration_seconds",
            _DURATION_BUCKETS_SECONDS,
            "model",
            "endpoint",
            "request_type",
        )
        self._input = self._histogram("input_sequence_tokens", _TOKEN_BUCKETS, *by_model)
        self._output = self._histogram("output_sequence_tokens", _TOKEN_BUCKETS, *by_model)
        self._cached = self._histogram("cached_tokens", _TOKEN_BUCKETS, *by_model)
        self._disconnected = self._counter(
            "disconnected_clients", "Clients that disconnected before the end.", *by_model
        )
        self._prefix_reasons = self._counter(
            "prefix_reasons", "Prompts by reason of divergence.", "model", "reason"
        )
        self._replayed_turns = self._counter(
            "replayed_turns", "Assistant turns by origin of their tokens.", "model", "kind"
        )
        self._splice_failures = self._counter(
            "splice_failures", "Known turns that could not be spliced into the prompt.", *by_model
        )
        self._inexact_turns = self._counter(
            "inexact_turns", "Responses without exact token ids.", *by_model
        )
        self._migrations = self._counter(
            "migrations", "Responses that were migrated to another replica.", *by_model
        )
        self._migrated_tokens = self._counter(
            "migrated_tokens", "Generated tokens that were carried over by migrations.", *by_model
        )
        self._recoveries = self._counter(
            "recoveries", "Defective turns that were recovered.", "model", "kind"
        )
        self._recovery_tokens = self._counter(
            "recovery_tokens", "Tokens that recoveries inserted or dropped.", "model", "kind"
        )
        self._prefix_tokens = self._counter(
            "prefix_tokens", "Prompt tokens compared with the last prompt.", "model", "kind"
        )
        self._reprefilled = self._counter(
            "reprefilled_tokens", "Prompt tokens that an engine prefilled again.", *by_model
        )
        self._dispatch_lead = self._histogram(
            "dispatch_lead_seconds", _DURATION_BUCKETS_SECONDS, *by_model
        )
        self._queue_wait = self._histogram(
            "queue_wait_seconds", _DURATION_BUCKETS_SECONDS, *by_model
        )
        self._prepare_time = self._histogram(
            "prepare_seconds", _DURATION_BUCKETS_SECONDS, *by_model
        )
        self._server_tools = self._histogram(
            "server_tool_seconds", _DURATION_BUCKETS_SECONDS, "tool", "outcome"
        )
        self._trace_dropped = self._counter(
            "trace_dropped", "Requests that were dropped from the trace."
        )
        self._diagnostics = self._counter(
            "parser_diagnostics", "Malformed output that was tolerated.", "model", "code"
        )
        self._rate_limited = self._counter(
            "rate_limited_requests",
            "Requests rejected by a rate limit or a capacity limit.",
            "reason",
        )
        self._refused_connections = self._counter(
            "refused_connections", "Connections refused before a request was read.", "reason"
        )
        # Created with 0, so that the first refusal is an increase.
        self._refused_connections.add(("connections",), 0)
        self._tls_failures = self._counter("tls_failures", "Failed TLS handshakes.", "reason")
        self._held_body_bytes = self._gauge(
            "held_body_bytes", "Bytes of bodies and messages of unfinished requests."
        )
        self._websockets = self._gauge("websocket_connections", "Open WebSocket connections.")
        self._draining = self._gauge("draining", "1 while the server drains, else 0.")
        self._background = self._gauge("background_responses", "Background responses in progress.")
        self._restarts = self._counter(
            "worker_restarts", "Restarts of this worker process after crashes."
        )
        self._inter_token: dict[str, InterTokenHistogram] = {}
        self.registry.register(_InterTokenCollector(self._inter_token))

    def inter_token_histogram(self, model: str) -> InterTokenHistogram:
        """Return the inter-token histogram of a model."""
        return self._inter_token.setdefault(model, InterTokenHistogram())

    def inter_token_counts(self) -> list[int]:
        """Return the counts of the inter-token histograms of all models, per bucket."""
        histograms = [one.counts for one in self._inter_token.values()]
        empty = [0] * (len(INTER_TOKEN_BUCKETS_SECONDS) + 1)
        return [sum(counts) for counts in zip(empty, *histograms, strict=True)]

    def start_request(self, endpoint: str) -> None:
        self.inflight_requests += 1
        self._inflight.add((endpoint,))

    def add_queued(self, delta: int) -> None:
        """Change the number of requests that wait for their first token."""
        self.queued_requests += delta
        self._queued.add(amount=delta)

    def count_inexact_turn(self, model: str) -> None:
        self._inexact_turns.add((model,))

    def count_migration(self, model: str, tokens: int) -> None:
        """Count a migration to another replica, with the tokens carried over."""
        self._migrations.add((model,))
        self._migrated_tokens.add((model,), tokens)

    def count_recovery(self, model: str, kind: str, inserted: int, dropped: int) -> None:
        """Count a recovered turn, with the tokens that were inserted into it or dropped."""
        self._recoveries.add((model, kind))
        self._recovery_tokens.add((model, "inserted"), inserted)
        self._recovery_tokens.add((model, "dropped"), dropped)

    def count_trace_dropped(self) -> None:
        """Count a request that the trace dropped."""
        self._trace_dropped.add()

    def count_rate_limited(self, reason: str) -> None:
        """Count a rejected request. `reason` names the limit and is from a closed set."""
        self._rate_limited.add((reason,))

    def count_refused_connection(self, reason: str) -> None:
        """Count a connection refused below the application. `reason` is from a closed set."""
        self._refused_connections.add((reason,))

    def count_tls_failure(self, reason: str) -> None:
        """Count a failed TLS handshake. `reason` is from a closed set."""
        self._tls_failures.add((reason,))

    def track_certificate_expiry(self, read_expiry: Callable[[], float]) -> None:
        """Report the expiry of the certificate as a Unix time."""
        name, help = "certificate_expiry_timestamp_seconds", "Expiry of the TLS certificate."
        self._gauge(name, help).set_function(read_expiry)

    def track_held_body_bytes(self, read_bytes: Callable[[], int]) -> None:
        """Report the size of the bodies of unfinished requests."""
        self._held_body_bytes.set_function(read_bytes)

    def add_websockets(self, delta: int) -> None:
        """Change the number of open WebSocket connections."""
        self._websockets.add(amount=delta)

    def set_draining(self, draining: bool) -> None:
        """Set whether the server is draining."""
        self._draining.set(draining)

    def add_background_responses(self, delta: int) -> None:
        """Change the number of background responses in progress."""
        self._background.add(amount=delta)

    def count_restarts(self, times: int) -> None:
        """Count the restarts of this worker after crashes."""
        self._restarts.add(amount=times)

    def record_request(self, record: RequestRecord) -> None:
        """Count a finished request."""
        kind = "stream" if record.stream else "unary"
        self.inflight_requests -= 1
        self._inflight.add((record.endpoint,), -1)
        self._requests.add((record.model, record.endpoint, kind, str(record.status)))
        self._duration.observe((record.model, record.endpoint, kind), record.duration)
        if record.disconnected:
            self._disconnected.add((record.model,))
        for code, count in record.diagnostics.items():
            self._diagnostics.add((record.model, code), count)
        self._count_tokens(record)
        self._count_durations(record)

    def _count_tokens(self, record: RequestRecord) -> None:
        if record.usage is not None:
            self._input.observe((record.model,), record.usage.input_tokens)
            self._output.observe((record.model,), record.usage.output_tokens)
            self._cached.observe((record.model,), record.usage.cached_tokens)
        if record.reprefilled is not None:
            self._reprefilled.add((record.model,), record.reprefilled)

    def _count_durations(self, record: RequestRecord) -> None:
        if record.first_token is not None:
            self._time_to_first_token.observe((record.model,), record.first_token)
        if record.decoded is not None and record.admitted is not None:
            self._queue_wait.observe((record.model,), record.admitted - record.decoded)
        if record.admitted is not None and record.prepared is not None:
            self._prepare_time.observe((record.model,), record.prepared - record.admitted)
        if record.stream and record.last_event is not None:
            for call in record.calls:
                if call.dispatched is not None and call.returned is None:
                    self._dispatch_lead.observe(
                        (record.model,), record.last_event - call.dispatched
                    )

    def count_server_call(self, tool: str, outcome: str, seconds: float) -> None:
        """Count a call of a server tool. `outcome` is `ok` or an error code."""
        self._server_tools.observe((tool, outcome), seconds)

    def count_prompt(self, model: str, prefix: PrefixStats, splice_failures: int) -> None:
        """Count a prompt: reason of divergence, origin of its turns, splice failures."""
        self._prefix_reasons.add((model, prefix.reason or "none"))
        kinds = {
            "kept": prefix.common,
            "new": prefix.total - prefix.common,
            "lost": prefix.lost,
        }
        for kind, count in kinds.items():
            self._prefix_tokens.add((model, kind), count)
        self.count_replayed_turns(model, prefix.turns)
        if splice_failures:
            self._splice_failures.add((model,), splice_failures)

    def count_replayed_turns(self, model: str, turns: dict[str, int]) -> None:
        """Count assistant turns by their origin in the prompt."""
        for kind, count in turns.items():
            self._replayed_turns.add((model, kind), count)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the metrics in a format that the client accepts, and the content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _counter(self, name: str, help: str, *labels: str) -> CounterFamily:
        return CounterFamily(self.registry, f"dovetail_{name}", help, labels)

    def _gauge(self, name: str, help: str, *labels: str) -> GaugeFamily:
        return GaugeFamily(self.registry, f"dovetail_{name}", help, labels)

    def _histogram(self, name: str, bounds: tuple[float, ...], *labels: str) -> HistogramFamily:
        return HistogramFamily(
            self.registry, f"dovetail_{name}", _HISTOGRAM_HELP[name], labels, bounds
        )


class _InterTokenCollector(Collector):
    """Exports the inter-token histograms to the registry."""

    def __init__(self, histograms: dict[str, InterTokenHistogram]) -> None:
        self._histograms = histograms

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(_INTER_TOKEN_NAME, _INTER_TOKEN_HELP, labels=["model"])
        for model, histogram in self._histograms.items():
            buckets, total = histogram.buckets()
            family.add_metric([model], buckets, total)
        yield family
