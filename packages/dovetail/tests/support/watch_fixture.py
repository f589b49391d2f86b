"""Fixtures for watch mode: servers that record every byte, and a relay in front of them."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ssl import SSLContext

from http_fixture import NAME, Stage, StageEngine, tiny_model

from dovetail.access.browser import BrowserPolicy
from dovetail.http.app import App
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model
from dovetail.net.http_client import Endpoint
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.pipeline.rendering import PromptSettings
from dovetail.prompt.volatile_text import NormalizationOptions
from dovetail.routing.pool import ReplicaPool
from dovetail.server.http_server import create_server
from dovetail.watch.capture import CaptureLimits
from dovetail.watch.exchange import CapturedExchange
from dovetail.watch.observer import TrafficObserver
from dovetail.watch.relay import RelayCallback, TcpRelay

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def endpoint(port: int) -> Endpoint:
    return Endpoint("127.0.0.1", port)


@asynccontextmanager
async def listening(serve: Serve, secure: SSLContext | None = None) -> AsyncIterator[int]:
    """Run a server that calls `serve` for each connection. Yields its port."""
    connections: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=secure)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


@asynccontextmanager
async def relaying(
    port: int, on_data: RelayCallback | None = None, policy: BrowserPolicy | None = None
) -> AsyncIterator[tuple[TcpRelay, int]]:
    """Run a relay to a local port. Yields its own port."""
    relay = TcpRelay(endpoint(port), on_data, policy)
    address = await relay.listen("127.0.0.1", 0)
    try:
        yield relay, int(address.rpartition(":")[2])
    finally:
        await relay.close()


@dataclass
class Seen:
    """The exchanges that an observer has reported."""

    exchanges: list[CapturedExchange] = field(default_factory=list)

    def take(self, exchange: CapturedExchange) -> None:
        self.exchanges.append(exchange)


@asynccontextmanager
async def observing(
    port: int, seen: Seen, limits: CaptureLimits | None = None
) -> AsyncIterator[tuple[TrafficObserver, int]]:
    """Run a relay with an observer, which has processed everything when the block ends."""
    observer = TrafficObserver(seen.take, limits)
    observer.start()
    try:
        async with relaying(port, observer.observe) as (relay, own):
            yield observer, own
            await relay.stats.idle.wait()
    finally:
        observer.close()


def pieces(data: bytes, chance: random.Random) -> Sequence[bytes]:
    """Split the bytes at random positions, some parts tiny."""
    found, at = [], 0
    while at < len(data):
        size = chance.choice((1, 2, 7, 100, 1500, 70_000))
        found.append(data[at : at + size])
        at += size
    return found


async def send_in_chunks(writer: asyncio.StreamWriter, data: bytes, chance: random.Random) -> None:
    for piece in pieces(data, chance):
        writer.write(piece)
        if chance.random() < 0.2:
            await writer.drain()
            await asyncio.sleep(0)
    await writer.drain()


PLAIN = PromptSettings(
    replay="client", normalization=NormalizationOptions(strip_preamble=False, volatile=())
)


@asynccontextmanager
async def plain_server(model: Model | None = None) -> AsyncIterator[Stage]:
    """A server that renders each request from text, without a ledger."""
    model = model or tiny_model()
    engine = StageEngine(model)
    preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([bytes(32)]), PLAIN)
    app = App(
        ModelRegistry(
            [TokenModel((NAME,), model, preparer, ReplicaPool([engine]), max_context=1 << 16)]
        )
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = create_server(app)
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield Stage(app, engine, listener.getsockname()[1], server, asyncio.Queue())
    finally:
        server.should_exit = True
        await task
