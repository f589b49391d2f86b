"""Numbers for Prometheus, under the names that users of Dynamo know, with our prefix.

Every label comes from a closed set: endpoints, served models, statuses, reasons, codes. What a
client writes never becomes a label.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from dovetail.request_end import RequestEnd

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKENS = tuple(float(2**power) for power in range(4, 21))
GAPS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_GAP_NAME = "dovetail_inter_token_latency_seconds"
_GAP_HELP = "Time between two batches of tokens of a stream."


class Gaps:
    """The times between batches of one model.

    The library's own histogram takes a lock and walks its buckets: too much for every token. All
    streams run on one loop, so a plain list will do, and whoever counts does so in place:
    `counts` has a place for each bound of `GAPS` and one for what is beyond, `sum` the seconds.
    """

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(GAPS) + 1)
        self.sum = 0.0

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by upper bound, as Prometheus wants them, and the sum."""
        total, found = 0, []
        for bound, count in zip([*map(str, GAPS), "+Inf"], self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found, self.sum


class Metrics:
    """All numbers of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        by_model = ("model",)
        self._requests = self._counter(
            "requests", "Requests.", "model", "endpoint", "request_type", "status"
        )
        self._inflight = self._gauge("inflight_requests", "Requests being worked on.", "endpoint")
        self._queued = self._gauge("queued_requests", "Requests before their first token.")
        self._first = self._histogram("time_to_first_token_seconds", _SECONDS, *by_model)
        self._duration = self._histogram(
            "request_duration_seconds", _SECONDS, "model", "endpoint", "request_type"
        )
        self._input = self._histogram("input_sequence_tokens", _TOKENS, *by_model)
        self._output = self._histogram("output_sequence_tokens", _TOKENS, *by_model)
        self._cached = self._histogram("cached_tokens", _TOKENS, *by_model)
        self._gone = self._counter("disconnected_clients", "Clients that hung up.", *by_model)
        self._reasons = self._counter(
            "prefix_reasons", "Prompts by why they left the last one.", "model", "reason"
        )
        self._turns = self._counter(
            "replayed_turns", "Assistant turns by how they stand in the prompt.", "model", "kind"
        )
        self._splices = self._counter(
            "splice_failures", "Known turns that could not be put in as they were.", *by_model
        )
        self._inexact = self._counter(
            "inexact_turns", "Answers whose ids the engine lost track of.", *by_model
        )
        self._migrations = self._counter(
            "migrations", "Answers that went on on another replica.", *by_model
        )
        self._diagnostics = self._counter(
            "parser_diagnostics", "Malformed output that was tolerated.", "model", "code"
        )
        self._gaps: dict[str, Gaps] = {}
        self.registry.register(_GapCollector(self._gaps))

    def gaps(self, model: str) -> Gaps:
        """Where the times between the batches of a model are counted."""
        return self._gaps.setdefault(model, Gaps())

    def began(self, endpoint: str) -> None:
        self._inflight.labels(endpoint).inc()

    def queued(self, by: int) -> None:
        """A request waits for its first token, or does no longer."""
        self._queued.inc(by)

    def diagnosed(self, model: str, code: str) -> None:
        self._diagnostics.labels(model, code).inc()

    def inexact(self, model: str) -> None:
        self._inexact.labels(model).inc()

    def migrated(self, model: str) -> None:
        self._migrations.labels(model).inc()

    def ended(self, end: RequestEnd) -> None:
        """Counts a request that is over."""
        kind = "stream" if end.stream else "unary"
        self._inflight.labels(end.endpoint).dec()
        self._requests.labels(end.model, end.endpoint, kind, str(end.status)).inc()
        self._duration.labels(end.model, end.endpoint, kind).observe(end.duration)
        if end.disconnected:
            self._gone.labels(end.model).inc()
        if end.first_token is not None:
            self._first.labels(end.model).observe(end.first_token)
        if end.usage is not None:
            self._input.labels(end.model).observe(end.usage.input_tokens)
            self._output.labels(end.model).observe(end.usage.output_tokens)
            self._cached.labels(end.model).observe(end.usage.cached_tokens)

    def prompted(self, model: str, reason: str | None, turns: dict[str, int], failed: int) -> None:
        """Counts a prompt: why it left the last one, how turns stand in it, what went wrong."""
        self._reasons.labels(model, reason or "none").inc()
        self.replayed(model, turns)
        if failed:
            self._splices.labels(model).inc(failed)

    def replayed(self, model: str, turns: dict[str, int]) -> None:
        """Counts assistant turns by how they stand in the prompt."""
        for kind, count in turns.items():
            self._turns.labels(model, kind).inc(count)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """All numbers as text, and the type of that text, as the client can read it."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"dovetail_{name}", help, labels, registry=self.registry)

    def _gauge(self, name: str, help: str, *labels: str) -> Gauge:
        return Gauge(f"dovetail_{name}", help, labels, registry=self.registry)

    def _histogram(self, name: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        help = name.replace("_", " ").capitalize() + "."
        return Histogram(f"dovetail_{name}", help, labels, buckets=buckets, registry=self.registry)


class _GapCollector(Collector):
    """Shows the plain lists to the registry."""

    def __init__(self, gaps: dict[str, Gaps]) -> None:
        self._gaps = gaps

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(_GAP_NAME, _GAP_HELP, labels=["model"])
        for model, gaps in self._gaps.items():
            buckets, total = gaps.buckets()
            family.add_metric([model], buckets, total)
        yield family
