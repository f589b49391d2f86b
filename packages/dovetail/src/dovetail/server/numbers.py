"""The numbers of all processes, from whichever of them is asked.

Each tells its own to the others. Whoever is scraped gathers them and says of each whose it is: a
process that is started again begins at nought, and a sum that falls would look like a great leap
forward to whoever reckons rates from it.
"""

from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from dovetail.server.worker_peers import PeerRequest, WorkerPeers

WORKER_LABEL = "worker"
METRICS_REQUEST = "numbers"  # is asked of siblings


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    name: str
    labels: dict[str, str]
    value: float


class MetricFamily(msgspec.Struct, frozen=True, array_like=True):
    """The samples of one name."""

    name: str
    help: str
    kind: str
    unit: str
    samples: list[MetricSample]


class WorkerMetrics:
    """The numbers of this process and of its siblings."""

    def __init__(self, registry: CollectorRegistry, peers: WorkerPeers) -> None:
        self._registry = registry
        self._peers = peers
        peers.register(METRICS_REQUEST, self._send_metrics)

    async def render(self, accept: str) -> tuple[bytes, str]:
        """All of them as text, and the type of that text, as the client can read it."""
        told = await self._peers.request_all(PeerRequest(METRICS_REQUEST))
        found = {at: theirs for at, one in told.items() if (theirs := _decode_families(one))}
        found[self._peers.number] = _collect_families(self._registry)
        encode, content_type = choose_encoder(accept)
        return encode(_MergedRegistry(found)), content_type

    async def _send_metrics(self, question: PeerRequest) -> AsyncGenerator[bytes]:
        yield msgspec.msgpack.encode(_collect_families(self._registry))


class _MergedRegistry:
    """The families of all, as a registry shows them."""

    def __init__(self, found: dict[int, list[MetricFamily]]) -> None:
        self._families = found

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for number, told in sorted(self._families.items()):
            for family in told:
                named = families.setdefault(
                    family.name, Metric(family.name, family.help, family.kind, family.unit)
                )
                for one in family.samples:
                    named.add_sample(one.name, {**one.labels, WORKER_LABEL: str(number)}, one.value)
        here = Metric("dovetail_workers", "Processes that told their numbers.", "gauge")
        here.add_sample("dovetail_workers", {}, len(self._families))
        return [*families.values(), here]


def _decode_families(told: bytes) -> list[MetricFamily]:
    """The numbers of another process; none where it was started from another version."""
    with suppress(msgspec.MsgspecError):
        return msgspec.msgpack.decode(told, type=list[MetricFamily])
    return []


def _collect_families(registry: CollectorRegistry) -> list[MetricFamily]:
    return [
        MetricFamily(
            metric.name,
            metric.documentation,
            metric.type,
            metric.unit,
            [MetricSample(one.name, dict(one.labels), float(one.value)) for one in metric.samples],
        )
        for metric in registry.collect()
    ]
