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

from dovetail.server.worker_peers import Question, Siblings

LABEL = "worker"
WHAT = "numbers"  # is asked of siblings


class Sample(msgspec.Struct, frozen=True, array_like=True):
    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True, array_like=True):
    """The samples of one name."""

    name: str
    help: str
    kind: str
    unit: str
    samples: list[Sample]


class Numbers:
    """The numbers of this process and of its siblings."""

    def __init__(self, registry: CollectorRegistry, siblings: Siblings) -> None:
        self._registry = registry
        self._siblings = siblings
        siblings.offer(WHAT, self._tell)

    async def render(self, accept: str) -> tuple[bytes, str]:
        """All of them as text, and the type of that text, as the client can read it."""
        told = await self._siblings.ask(Question(WHAT))
        found = {at: theirs for at, one in told.items() if (theirs := _read(one))}
        found[self._siblings.number] = _families(self._registry)
        encode, content_type = choose_encoder(accept)
        return encode(_Together(found)), content_type

    async def _tell(self, question: Question) -> AsyncGenerator[bytes]:
        yield msgspec.msgpack.encode(_families(self._registry))


class _Together:
    """The families of all, as a registry shows them."""

    def __init__(self, found: dict[int, list[Family]]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for number, told in sorted(self._found.items()):
            for family in told:
                named = families.setdefault(
                    family.name, Metric(family.name, family.help, family.kind, family.unit)
                )
                for one in family.samples:
                    named.add_sample(one.name, {**one.labels, LABEL: str(number)}, one.value)
        here = Metric("dovetail_workers", "Processes that told their numbers.", "gauge")
        here.add_sample("dovetail_workers", {}, len(self._found))
        return [*families.values(), here]


def _read(told: bytes) -> list[Family]:
    """The numbers of another process; none where it was started from another version."""
    with suppress(msgspec.MsgspecError):
        return msgspec.msgpack.decode(told, type=list[Family])
    return []


def _families(registry: CollectorRegistry) -> list[Family]:
    return [
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            metric.unit,
            [Sample(one.name, dict(one.labels), float(one.value)) for one in metric.samples],
        )
        for metric in registry.collect()
    ]
