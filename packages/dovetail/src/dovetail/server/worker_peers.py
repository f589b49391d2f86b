"""Request/response channel between the worker processes of one server, and merged metrics.

Each worker listens on a unix socket in the private runtime folder. A connection carries one request
and its response: length-prefixed frames and an end mark. A response without the end mark is
truncated.
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

from dovetail.net.exchange import ClientDisconnected, DisconnectGuard, Message
from dovetail_model import InternalError

PEER_TIMEOUT_SECONDS = 2.0  # until a request has arrived, and until a response starts

_END_MARK = (1 << 32) - 1  # in place of a length
_MAX_FRAME_BYTES = 1 << 28
_BACKLOG = 1024

_log = logging.getLogger(__name__)


class PeerRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request to another worker about the response with this tenant and id.

    after: Number of the last frame that the client has.
    """

    operation: str
    tenant: str = ""
    id: str = ""
    after: int = -1

    @property
    def key(self) -> tuple[str, str]:
        return self.tenant, self.id


PeerHandler = Callable[[PeerRequest], AsyncGenerator[bytes]]


class PeerDisconnected(InternalError):
    """Another worker did not complete its response."""


class WorkerPeers:
    """The channel of worker `number` to the other workers, of `count` in all."""

    def __init__(
        self,
        folder: Path,
        number: int,
        count: int,
        *,
        timeout_seconds: float = PEER_TIMEOUT_SECONDS,
    ) -> None:
        self.number = number
        self._timeout_seconds = timeout_seconds
        self._folder = folder
        self._peer_numbers = [peer for peer in range(count) if peer != number]
        self._handlers: dict[str, PeerHandler] = {}
        self._server: asyncio.Server | None = None
        self._active: set[asyncio.Task[object] | None] = set()

    def register(self, operation: str, handler: PeerHandler) -> None:
        """Register the handler of an operation. A handler without a result yields no frames."""
        self._handlers[operation] = handler

    async def open(self) -> None:
        """Start to accept requests."""
        path = self._path(self.number)
        path.unlink(missing_ok=True)  # left by a crashed predecessor
        self._server = await asyncio.start_unix_server(self._serve, path, backlog=_BACKLOG)

    async def close(self) -> None:
        """Stop accepting requests. Running responses get a short time to finish."""
        if self._server is None:
            return
        self._server.close()
        self._path(self.number).unlink(missing_ok=True)
        active = {task for task in self._active if task is not None}
        if active:
            _, late = await asyncio.wait(active, timeout=self._timeout_seconds)
            for task in late:
                task.cancel()

    async def request_all(
        self, request: PeerRequest, timeout_seconds: float | None = None
    ) -> dict[int, bytes]:
        """Return a one-frame response from each other worker. Those without one are omitted."""
        tasks = {
            peer: asyncio.create_task(_read_single_frame(self._request(peer, request)))
            for peer in self._peer_numbers
        }
        try:
            if tasks:
                await asyncio.wait(tasks.values(), timeout=timeout_seconds or self._timeout_seconds)
            frames = {peer: task.result() for peer, task in tasks.items() if task.done()}
            return {peer: frame for peer, frame in frames.items() if frame is not None}
        finally:
            for task in tasks.values():
                task.cancel()

    async def request_first(self, request: PeerRequest) -> AsyncGenerator[bytes] | None:
        """Return the first response that has frames, after its first frame; None without any.

        The caller closes the response. Reading it can raise `PeerDisconnected`.
        """
        tasks = [
            asyncio.create_task(await_first_frame(self._request(peer, request)))
            for peer in self._peer_numbers
        ]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_seconds):
                    for task_result in asyncio.as_completed(tasks):
                        if (response := await task_result) is not None:
                            return response
            return None
        finally:
            for task in tasks:
                task.cancel()

    async def _request(self, number: int, request: PeerRequest) -> AsyncGenerator[bytes]:
        """Yield the frames of one worker's response. Raises OSError if it is not running."""
        reader, writer = await asyncio.open_unix_connection(self._path(number))
        try:
            writer.write(_encode_frame(msgspec.msgpack.encode(request)))
            while (frame := await _read_frame(reader)) is not None:
                yield frame
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection. A disconnect cancels the response."""

        async def receive() -> Message:
            with suppress(ConnectionError):
                await reader.read(1)
            return {"type": "http.disconnect"}

        task = asyncio.current_task()
        self._active.add(task)
        try:
            # These errors mean that the requesting worker has disconnected.
            with suppress(PeerDisconnected, ConnectionError, ClientDisconnected, TimeoutError):
                async with asyncio.timeout(self._timeout_seconds):
                    request = await _read_frame(reader)
                async with DisconnectGuard(receive):
                    await self._respond(request or b"", writer)
        except Exception as error:
            _log.error("peer_request_failed", exc_info=error)
        finally:
            self._active.discard(task)
            writer.close()

    async def _respond(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        """Send the response, with backpressure."""
        request = msgspec.msgpack.decode(body, type=PeerRequest)
        async with aclosing(self._handlers[request.operation](request)) as response:
            async for frame in response:
                writer.write(_encode_frame(frame))
                await writer.drain()
        writer.write(_END_MARK.to_bytes(4, "big"))
        await writer.drain()

    def _path(self, number: int) -> Path:
        return self._folder / f"worker-{number}"


async def await_first_frame(response: AsyncGenerator[bytes]) -> AsyncGenerator[bytes] | None:
    """Skip the first frame and return the response; None without a response or a worker."""
    with suppress(PeerDisconnected, OSError, StopAsyncIteration):
        await anext(response)
        return response
    return None


async def _read_single_frame(response: AsyncGenerator[bytes]) -> bytes | None:
    """Read a response of one frame; None without a response or a worker."""
    with suppress(PeerDisconnected, OSError, StopAsyncIteration):
        async with aclosing(response):
            return await anext(response)
    return None


def _encode_frame(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


async def _read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Read the next frame; None at the end of the response."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size == _END_MARK:
            return None
        if size <= _MAX_FRAME_BYTES:
            return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise PeerDisconnected("Another worker process exited before it had responded.") from error
    raise PeerDisconnected(
        f"Another worker process sent a frame of {size} bytes; the limit is {_MAX_FRAME_BYTES}."
    )


WORKER_LABEL = "worker"
METRICS_REQUEST = "numbers"


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    name: str
    labels: dict[str, str]
    value: float


class MetricFamily(msgspec.Struct, frozen=True, array_like=True):
    """The samples of one metric."""

    name: str
    help_text: str
    kind: str
    unit: str
    samples: list[MetricSample]


class WorkerMetrics:
    """Render the merged metrics of all workers."""

    def __init__(self, registry: CollectorRegistry, peers: WorkerPeers) -> None:
        self._registry = registry
        self._peers = peers
        peers.register(METRICS_REQUEST, self._send_metrics)

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in a format that the client accepts, and the content type."""
        frames = await self._peers.request_all(PeerRequest(METRICS_REQUEST))
        families = {
            peer: decoded for peer, frame in frames.items() if (decoded := _decode_families(frame))
        }
        families[self._peers.number] = _collect_families(self._registry)
        encode, content_type = choose_encoder(accept)
        return encode(_MergedRegistry(families)), content_type

    async def _send_metrics(self, request: PeerRequest) -> AsyncGenerator[bytes]:
        yield msgspec.msgpack.encode(_collect_families(self._registry))


class _MergedRegistry:
    """The metric families of all workers, with the interface of a registry."""

    def __init__(self, families: dict[int, list[MetricFamily]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for number, worker_families in sorted(self._families.items()):
            for family in worker_families:
                metric = families.setdefault(
                    family.name, Metric(family.name, family.help_text, family.kind, family.unit)
                )
                for one in family.samples:
                    metric.add_sample(
                        one.name, {**one.labels, WORKER_LABEL: str(number)}, one.value
                    )
        workers = Metric("dovetail_workers", "Worker processes that reported metrics.", "gauge")
        workers.add_sample("dovetail_workers", {}, len(self._families))
        return [*families.values(), workers]


def _decode_families(frame: bytes) -> list[MetricFamily]:
    """Decode another worker's metrics. Returns none if it runs another version."""
    with suppress(msgspec.MsgspecError):
        return msgspec.msgpack.decode(frame, type=list[MetricFamily])
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
