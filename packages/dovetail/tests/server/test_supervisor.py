"""Parts of multi-process servers: consistent routing, hosted engines, metrics, notifications."""

import asyncio
import signal
import socket
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from http_fixture import StageEngine, tiny_model
from ledger_entries import turn
from prometheus_client import Gauge

from dovetail.engines.engine import EngineRequest, TokenDelta, TokenEngine
from dovetail.engines.hosted import HostedEngine, HostedOptions, describe_hosted
from dovetail.engines.registry import EngineSetup, create_engine
from dovetail.engines.steps.messages import describe_engine
from dovetail.engines.steps.server import StepServer
from dovetail.engines.token_stream import iter_deltas
from dovetail.ledger.entry import LedgerEntry
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.net.listener import ListenAddress, open_listener
from dovetail.routing.policy import CONSISTENT_TOLERANCE_TOKENS
from dovetail.routing.pool import ReplicaPool
from dovetail.routing.prefix_index import PrefixMatch
from dovetail.routing.router import RoutedRequest, Router
from dovetail.server.process import ManagedProcess, notify
from dovetail.server.worker_peers import WorkerMetrics, WorkerPeers
from dovetail.telemetry.metrics import Metrics
from dovetail_model import EngineError, EngineUnavailable

SESSIONS = [f"session {at}" for at in range(200)]


def pool(count: int = 3, *, agreeing: bool = True) -> ReplicaPool:
    engines = [StageEngine(tiny_model()) for _ in range(count)]
    return ReplicaPool(engines, router=Router(consistent=agreeing))


def homes(of: ReplicaPool, sessions: list[str]) -> list[int]:
    unknown = PrefixMatch(None)
    return [of._route(RoutedRequest(0, session, 0), unknown)[0].index for session in sessions]


def test_pools_of_two_workers_choose_the_same_replica() -> None:
    one, other = pool(), pool()
    chosen = homes(one, SESSIONS)
    assert homes(other, SESSIONS[::-1]) == chosen[::-1]
    assert all(chosen.count(number) > 40 for number in range(3))


def test_pools_agree_unless_the_replica_is_much_busier() -> None:
    one, other = pool(), pool()
    chosen = homes(one, SESSIONS)
    other.router.load(0).queued_tokens = CONSISTENT_TOLERANCE_TOKENS
    assert homes(other, SESSIONS) == chosen
    third = pool()
    third.router.load(0).queued_tokens = CONSISTENT_TOLERANCE_TOKENS + 1
    assert 0 not in homes(third, SESSIONS)


def test_failed_replica_loses_only_its_own_sessions() -> None:
    one, other = pool(), pool()
    chosen = homes(one, SESSIONS)
    other.replicas[1].is_available = False
    for before, now in zip(chosen, homes(other, SESSIONS), strict=True):
        assert now == before if before != 1 else now != 1


def test_pool_of_a_single_worker_picks_the_idlest_replica() -> None:
    alone = pool(agreeing=False)
    alone.router.load(0).queued_tokens = 1
    alone.router.load(1).queued_tokens = 1
    assert set(homes(alone, SESSIONS)) == {2}


def test_hosted_engine_behaves_like_the_engine(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = StageEngine(tiny_model())
        stage.plan = stage.script("Hello.", cached=3)
        async with hosted(stage, tmp_path / "s") as (engine, crash):
            assert engine.name == "stage"
            deltas = await collect_deltas(engine, stage)
            ids = [id for delta in deltas for id in delta.ids]
            assert ids == [*stage.tokenizer.encode("Hello."), stage.stop_id]
            assert (deltas[-1].finish, deltas[0].cached) == ("stop", 3)
            assert all(delta.exact for delta in deltas)
            assert stage.requests[0].stop_ids == frozenset({stage.stop_id})
            assert stage.requests[0].session == "s"
            crash()
            while (await engine.health()).ready:  # noqa: ASYNC110 - until the engine notices
                await asyncio.sleep(0.01)
            with pytest.raises(EngineUnavailable):
                await collect_deltas(engine, stage)

    asyncio.run(scene())


def test_hosted_engine_reports_inexact_ids(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = StageEngine(tiny_model())

        async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
            yield TokenDelta([5], exact=False)
            yield TokenDelta([6, stage.stop_id], finish="stop", cached=0)

        stage.plan = play
        async with hosted(stage, tmp_path / "s") as (engine, _):
            assert not all(delta.exact for delta in await collect_deltas(engine, stage))

    asyncio.run(scene())


def test_hosted_engine_requires_its_key(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = StageEngine(tiny_model())
        async with hosted(stage, tmp_path / "s"):
            traits = describe_hosted(stage)
            stranger = HostedEngine(HostedOptions(f"unix://{tmp_path / 's'}", "wrong", traits))
            with pytest.raises(EngineError, match="key"):
                await stranger.start()

    asyncio.run(scene())


@asynccontextmanager
async def hosted(
    stage: StageEngine, path: Path
) -> AsyncIterator[tuple[TokenEngine, Callable[[], None]]]:
    """A hosted engine, and the function that ends the server that hosts it."""
    listener, url = open_listener(ListenAddress(path=path))
    host = StepServer(stage, describe_engine(stage.name, stage.capabilities), "secret")
    serving = await host.serve(listener)

    def crash() -> None:
        serving.close()
        host.disconnect_all()

    options = {"address": url, "key": "secret", "traits": describe_hosted(stage)}
    setup = EngineSetup(tokenizer=stage.tokenizer, options=options)
    engine = create_engine("dovetail.engines.hosted:create", setup)
    await engine.start()
    try:
        yield engine, crash
    finally:
        await engine.stop()
        crash()


async def collect_deltas(engine: TokenEngine, stage: StageEngine) -> list[TokenDelta]:
    prompt = array("i", stage.tokenizer.encode("Hi"))
    stops = frozenset({stage.stop_id})
    request = EngineRequest("id", prompt, 100, stop_ids=stops, session="s")
    return [delta async for delta in iter_deltas(engine, request)]


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(3000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be so")


def test_metrics_are_merged_with_worker_labels(tmp_path: Path) -> None:
    async def scene() -> None:
        metrics = [Metrics() for _ in range(3)]
        Gauge("truth", "Not every number is one.", registry=metrics[1].registry).set_function(
            lambda: True
        )
        metrics[0].count_rate_limited("requests")
        metrics[1].count_rate_limited("requests")
        metrics[1].count_rate_limited("requests")
        peers = [WorkerPeers(tmp_path, at, 3) for at in range(3)]
        worker_metrics = [
            WorkerMetrics(one.registry, peer) for one, peer in zip(metrics, peers, strict=True)
        ]
        await peers[0].open()
        await peers[1].open()  # the third worker has crashed
        text, kind = await worker_metrics[0].render("")
        assert kind.startswith("text/plain")
        lines = text.decode().splitlines()
        family = "dovetail_rate_limited_requests_total"
        assert lines.count(f"# TYPE {family} counter") == 1
        assert f'{family}{{reason="requests",worker="0"}} 1.0' in lines
        assert f'{family}{{reason="requests",worker="1"}} 2.0' in lines
        assert 'truth{worker="1"} 1.0' in lines
        assert "dovetail_workers 2.0" in lines
        assert not any('worker="2"' in line for line in lines)
        text, kind = await worker_metrics[1].render("application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert text.endswith(b"# EOF\n")
        for peer in peers:
            await peer.close()

    asyncio.run(scene())


@pytest.mark.parametrize("form", ["path", "abstract"])
def test_service_manager_is_notified(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(tmp_path / "notify") if form == "path" else f"@dovetail-test-{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0", 1) if form == "abstract" else name)
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify("READY=1")
        assert manager.recv(1000) == b"READY=1"
        notify("RELOADING=1")
        state, _, moment = manager.recv(1000).decode().partition("\n")
        assert state == "RELOADING=1"
        assert int(moment.removeprefix("MONOTONIC_USEC=")) > 0
    notify("STOPPING=1")  # the receiver is gone
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")


class SlowStore(MemoryLedgerStore):
    """The script follows no grammar, which the probe would detect, so the probe is disabled."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def put(self, entry: LedgerEntry) -> None:
        await self.gate.wait()
        await super().put(entry)


def test_a_turn_is_recorded_when_the_store_has_it() -> None:
    async def scene() -> None:
        store = SlowStore()
        ledger = Ledger(store, shared=True)
        entry = turn("a")
        recording = asyncio.create_task(ledger.record(entry, array("i")))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not recording.done()
        store.gate.set()
        await recording
        assert await store.get(entry.tenant, "a") == entry
        await ledger.close()

    asyncio.run(scene())


def test_hanging_store_delays_no_request() -> None:
    async def scene() -> None:
        store = SlowStore()
        ledger = Ledger(store, shared=True)
        ledger.write_timeout_seconds = 0.01
        async with asyncio.timeout(30):
            await ledger.record(turn("a"), array("i"))
        assert ledger.faults.lost == 0  # the write is still pending
        store.gate.set()
        await ledger.flush()
        assert await store.get(turn("a").tenant, "a") is not None

    asyncio.run(scene())


def test_process_does_not_import_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uvloop.py").write_text("open('was-imported', 'w')")
    monkeypatch.chdir(tmp_path)

    async def scene() -> None:
        assert await ManagedProcess("dovetail.cli.worker").start("no order") is None

    asyncio.run(scene())
    assert [one.name for one in tmp_path.iterdir()] == ["uvloop.py"]


def test_signal_before_the_process_exists_is_delivered() -> None:
    async def scene() -> None:
        member = ManagedProcess("dovetail.cli.worker")
        member.send(signal.SIGTERM)
        assert await member.start("no order") is None
        assert await member.wait() == -signal.SIGTERM

    asyncio.run(scene())
