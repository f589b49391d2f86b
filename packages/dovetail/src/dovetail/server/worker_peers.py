"""How the processes of one server ask each other.

Each listens on a socket in the server's folder, which nobody else can enter. A connection carries
one question and its answer: frames, each behind its length, and a mark at the end. An answer
without the mark was broken off.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from dovetail.net.disconnect import DisconnectGuard
from dovetail.net.exchange import ClientDisconnected, Message
from dovetail_model import InternalError

PEER_TIMEOUT_SECONDS = 2.0  # seconds for a question to come, and for an answer to begin

_END_MARK = (1 << 32) - 1  # stands where a length would
_MAX_FRAME_BYTES = 1 << 28  # bytes of a frame
_BACKLOG = 1024

_log = logging.getLogger(__name__)


class PeerRequest(msgspec.Struct, frozen=True, array_like=True):
    """What is asked; about a response, where it is one, and from behind which of its frames on."""

    what: str
    tenant: str = ""
    id: str = ""
    after: int = -1

    @property
    def key(self) -> tuple[str, str]:
        return self.tenant, self.id


PeerHandler = Callable[[PeerRequest], AsyncGenerator[bytes]]


class PeerDisconnected(InternalError):
    """A sibling did not tell all of its answer."""


class WorkerPeers:
    """Process `number` of the `count` that there are, and its way to the others."""

    def __init__(self, folder: Path, number: int, count: int) -> None:
        self.number = number
        self._folder = folder
        self._peer_numbers = [at for at in range(count) if at != number]
        self._handlers: dict[str, PeerHandler] = {}
        self._server: asyncio.Server | None = None
        self._active: set[asyncio.Task[object] | None] = set()

    def register(self, what: str, handler: PeerHandler) -> None:
        """This is answered so. An answer of no frames says that there is nothing to tell."""
        self._handlers[what] = handler

    async def open(self) -> None:
        """Answers from now on."""
        path = self._path(self.number)
        path.unlink(missing_ok=True)  # of one that was here before, and fell
        self._server = await asyncio.start_unix_server(self._serve, path, backlog=_BACKLOG)

    async def close(self) -> None:
        """What is being told has a little time to be read."""
        if self._server is None:
            return
        self._server.close()
        self._path(self.number).unlink(missing_ok=True)
        telling = {task for task in self._active if task is not None}
        if telling:
            _, late = await asyncio.wait(telling, timeout=PEER_TIMEOUT_SECONDS)
            for task in late:
                task.cancel()

    async def request_all(
        self, request: PeerRequest, timeout_seconds: float = PEER_TIMEOUT_SECONDS
    ) -> dict[int, bytes]:
        """What each of the others tells in one frame. Who is silent is left out."""
        asking = {
            at: asyncio.create_task(_read_single_frame(self._request(at, request)))
            for at in self._peer_numbers
        }
        try:
            if asking:
                await asyncio.wait(asking.values(), timeout=timeout_seconds)
            told = {at: task.result() for at, task in asking.items() if task.done()}
            return {at: one for at, one in told.items() if one is not None}
        finally:
            for task in asking.values():
                task.cancel()

    async def request_first(self, request: PeerRequest) -> AsyncGenerator[bytes] | None:
        """The answer of the one that has one, behind its first frame. None: nobody has.

        Whoever reads it closes it. It raises `BrokenOff`.
        """
        asking = [
            asyncio.create_task(await_first_frame(self._request(at, request)))
            for at in self._peer_numbers
        ]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(PEER_TIMEOUT_SECONDS):
                    for answer in asyncio.as_completed(asking):
                        if (found := await answer) is not None:
                            return found
            return None
        finally:
            for task in asking:
                task.cancel()

    async def _request(self, number: int, request: PeerRequest) -> AsyncGenerator[bytes]:
        """What one of them tells. OSError where it is not there."""
        reader, writer = await asyncio.open_unix_connection(self._path(number))
        try:
            writer.write(_encode_frame(msgspec.msgpack.encode(request)))
            while (frame := await _read_frame(reader)) is not None:
                yield frame
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection. Who hangs up is told no more."""

        async def hung_up() -> Message:
            with suppress(ConnectionError):
                await reader.read(1)
            return {"type": "http.disconnect"}

        task = asyncio.current_task()
        self._active.add(task)
        try:
            # Raised where whoever asked is gone.
            with suppress(PeerDisconnected, ConnectionError, ClientDisconnected, TimeoutError):
                async with asyncio.timeout(PEER_TIMEOUT_SECONDS):
                    asked = await _read_frame(reader)
                async with DisconnectGuard(hung_up):
                    await self._respond(asked or b"", writer)
        except Exception as error:
            _log.error("sibling_not_answered", exc_info=error)
        finally:
            self._active.discard(task)
            writer.close()

    async def _respond(self, asked: bytes, writer: asyncio.StreamWriter) -> None:
        """The answer, no more of it at a time than is read."""
        question = msgspec.msgpack.decode(asked, type=PeerRequest)
        async with aclosing(self._handlers[question.what](question)) as answer:
            async for frame in answer:
                writer.write(_encode_frame(frame))
                await writer.drain()
        writer.write(_END_MARK.to_bytes(4, "big"))
        await writer.drain()

    def _path(self, number: int) -> Path:
        return self._folder / f"worker-{number}"


async def await_first_frame(answer: AsyncGenerator[bytes]) -> AsyncGenerator[bytes] | None:
    """The answer, once its first frame is here. None: there is nothing, or nobody."""
    with suppress(PeerDisconnected, OSError, StopAsyncIteration):
        await anext(answer)
        return answer
    return None


async def _read_single_frame(answer: AsyncGenerator[bytes]) -> bytes | None:
    """The one frame of an answer. None: there is nothing, or nobody."""
    with suppress(PeerDisconnected, OSError, StopAsyncIteration):
        async with aclosing(answer):
            return await anext(answer)
    return None


def _encode_frame(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


async def _read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame; None at the end of the answer."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size == _END_MARK:
            return None
        if size <= _MAX_FRAME_BYTES:
            return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise PeerDisconnected("Another process of the server fell while it answered.") from error
    raise PeerDisconnected(f"Another process of the server sends {size} bytes at once.")


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
