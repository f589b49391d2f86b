"""The numbers of all processes, from whichever of them is asked.

Each shows its own on a socket in the server's folder. Whoever is scraped gathers them and says of
each whose it is: a process that is started again begins at nought, and a sum that falls would look
like a great leap forward to whoever reckons rates from it.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

LABEL = "worker"
PATIENCE = 2.0  # seconds for the others to tell theirs


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
    """The numbers of process `number` and of the `count` that there are."""

    def __init__(self, registry: CollectorRegistry, folder: Path, number: int, count: int) -> None:
        self._registry = registry
        self._folder = folder
        self._number = number
        self._count = count
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Shows them from now on."""
        path = self._path(self._number)
        path.unlink(missing_ok=True)  # of one that was here before, and fell
        self._server = await asyncio.start_unix_server(self._tell, path)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path(self._number).unlink(missing_ok=True)

    async def render(self, accept: str) -> tuple[bytes, str]:
        """All of them as text, and the type of that text, as the client can read it."""
        others = [at for at in range(self._count) if at != self._number]
        told = await asyncio.gather(*map(self._ask, others))
        found = dict(zip(others, told, strict=True)) | {self._number: _families(self._registry)}
        encode, content_type = choose_encoder(accept)
        return encode(_Together(found)), content_type

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(msgspec.msgpack.encode(_families(self._registry)))
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def _ask(self, number: int) -> list[Family]:
        """Theirs; none of one that is not there, or does not answer."""
        with suppress(OSError, TimeoutError, msgspec.MsgspecError):
            async with asyncio.timeout(PATIENCE):
                reader, writer = await asyncio.open_unix_connection(self._path(number))
                try:
                    return msgspec.msgpack.decode(await reader.read(), type=list[Family])
                finally:
                    writer.close()
        return []

    def _path(self, number: int) -> Path:
        return self._folder / f"worker-{number}"


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
        here.add_sample("dovetail_workers", {}, sum(bool(told) for told in self._found.values()))
        return [*families.values(), here]


def _families(registry: CollectorRegistry) -> list[Family]:
    return [
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            metric.unit,
            [Sample(one.name, dict(one.labels), one.value) for one in metric.samples],
        )
        for metric in registry.collect()
    ]
