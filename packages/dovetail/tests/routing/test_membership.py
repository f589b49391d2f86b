"""Replicas that are added and removed while the pool runs: by calls, a watched file and DNS."""

import asyncio
import socket
from array import array
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenSink,
)
from dovetail.engines.token_stream import iter_deltas
from dovetail.routing.membership import (
    DnsName,
    ReplicaMembership,
    SourceError,
    UrlFile,
    UrlSource,
)
from dovetail.routing.pool import ReplicaPool
from dovetail_model import EngineUnavailable


class UrlEngine:
    """An engine in this process that generates its port. A test controls when it finishes."""

    name = "fake"
    capabilities = EngineCapabilities()

    def __init__(self, url: str) -> None:
        self.port = int(url.rpartition(":")[2])
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.connected = asyncio.Event()
        self.connected.set()
        self.reachable = True
        self.stopped = False

    async def start(self) -> None:
        await self.connected.wait()
        if not self.reachable:
            raise EngineUnavailable("connection refused")

    async def stop(self) -> None:
        self.stopped = True

    async def health(self) -> EngineHealth:
        return EngineHealth(self.reachable)

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        await self.go_on.wait()
        sink.push(TokenDelta([self.port], finish="stop"))


class Fleet:
    """A pool with replicas at some URLs, and all engines that were created."""

    def __init__(
        self, *urls: str, source: UrlSource | None = None, unreachable: tuple[int, ...] = ()
    ) -> None:
        self.engines: dict[str, UrlEngine] = {}
        self._unreachable = unreachable
        read = source.read() if source is not None else ()
        all_urls = [*dict.fromkeys([*urls, *read])]
        self.pool = ReplicaPool([self.create(url) for url in all_urls], urls=all_urls)
        sources = {} if source is None else {source: read}
        self.membership = ReplicaMembership(
            self.pool, self.create, sources, fixed=urls, interval_seconds=0.0
        )

    def create(self, url: str) -> UrlEngine:
        engine = self.engines[url] = UrlEngine(url)
        engine.reachable = engine.port not in self._unreachable
        return engine

    @property
    def urls(self) -> set[str | None]:
        return {replica.url for replica in self.pool.replicas}

    async def generate(self, session: str) -> int:
        request = EngineRequest("r", array("I", range(2000)), 10, session=session)
        async with aclosing(iter_deltas(self.pool, request)) as deltas:
            received = [delta async for delta in deltas]
            return received[0].ids[0]


def run_async(check: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await check()

    asyncio.run(main())


def test_added_replica_serves_new_sessions_and_old_ones_stay() -> None:
    async def check() -> None:
        fleet = Fleet("http://a:1")
        await fleet.pool.start()
        assert await fleet.generate("x") == 1
        added = await fleet.membership.add("http://b:2/v1/")
        assert added.url == "http://b:2"
        for same in ("http://b:2", "HTTP://B:2/"):
            assert await fleet.membership.add(same) is added
        assert fleet.pool.router.load(added.index).name == "http://b:2"
        for invalid in ("http://b :2", "http://b:2\0", "ftp://b:2", ""):
            with pytest.raises(SourceError):
                await fleet.membership.add(invalid)
        assert await fleet.generate("y") == 2
        assert [await fleet.generate(one) for one in "xyxy"] == [1, 2, 1, 2]
        await fleet.pool.stop()

    run_async(check)


def test_removed_replica_finishes_its_requests_and_gets_no_new_ones() -> None:
    async def check() -> None:
        fleet = Fleet("http://a:1", "http://b:2")
        await fleet.pool.start()
        assert await fleet.generate("x") == 1
        first = fleet.engines["http://a:1"]
        first.go_on.clear()
        running = asyncio.create_task(fleet.generate("x"))
        while not fleet.pool.replicas[0].active_requests:  # noqa: ASYNC110 - no event exists
            await asyncio.sleep(0)
        await fleet.membership.remove("http://a:1")
        assert [await fleet.generate(one) for one in "xyz"] == [2, 2, 2]
        assert not fleet.engines["http://a:1"].stopped
        first.go_on.set()
        assert await running == 1
        while not first.stopped:  # noqa: ASYNC110 - no event exists
            await asyncio.sleep(0)
        with pytest.raises(ValueError, match="only replica cannot be removed"):
            await fleet.membership.remove("http://b:2")
        with pytest.raises(SourceError, match="unknown replica http://c:3; replicas: http://b:2"):
            await fleet.membership.remove("http://c:3")
        await fleet.pool.stop()

    run_async(check)


def test_unreachable_replica_is_added_and_recovers() -> None:
    async def check() -> None:
        fleet = Fleet("http://a:1", unreachable=(2,))
        await fleet.pool.start()
        replica = await fleet.membership.add("http://b:2")
        assert not replica.is_available
        assert replica.failure == "connection refused"
        assert await fleet.generate("x") == 1
        fleet.engines["http://b:2"].reachable = True
        assert replica.recovery_task is not None
        await replica.recovery_task
        assert not replica.failure
        assert await fleet.generate("y") == 2
        await fleet.pool.stop()

    run_async(check)


def test_replica_gets_no_requests_before_it_is_started() -> None:
    """An address at which nothing responds is known as such only after a timeout."""

    async def check() -> None:
        fleet = Fleet("http://a:1")
        await fleet.pool.start()
        create, waiting = fleet.create, asyncio.Event()

        def create_slow(url: str) -> UrlEngine:
            engine = create(url)
            engine.connected = waiting
            return engine

        fleet.membership._create_engine = create_slow
        adding = asyncio.create_task(fleet.membership.add("http://b:2"))
        while "http://b:2" not in fleet.engines:  # noqa: ASYNC110 - no event exists
            await asyncio.sleep(0)
        assert [await fleet.generate(one) for one in "xyz"] == [1, 1, 1]
        waiting.set()
        await adding
        assert await fleet.generate("w") == 2
        await fleet.pool.stop()

    run_async(check)


def test_a_change_that_failed_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "urls"
    path.write_text("http://a:1\n")

    async def check() -> None:
        fleet = Fleet(source=UrlFile(path))
        await fleet.pool.start()
        create = fleet.create

        def fail(url: str) -> UrlEngine:
            raise OSError("no file descriptors left")

        fleet.membership._create_engine = fail
        path.write_text("http://b:2\n")
        await fleet.membership.refresh()
        assert fleet.urls == {"http://a:1"}  # the only replica stays
        fleet.membership._create_engine = create
        await fleet.membership.refresh()
        assert fleet.urls == {"http://b:2"}
        await fleet.pool.stop()

    run_async(check)


def test_replica_of_the_settings_stays_when_a_file_drops_it(tmp_path: Path) -> None:
    path = tmp_path / "urls"
    path.write_text("http://a:1\nhttp://b:2\n")

    async def check() -> None:
        fleet = Fleet("http://a:1", source=UrlFile(path))
        await fleet.pool.start()
        path.write_text("http://c:3\n")
        await fleet.membership.refresh()
        assert fleet.urls == {"http://a:1", "http://c:3"}
        await fleet.pool.stop()

    run_async(check)


def test_file_that_is_too_large_is_not_read_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "urls"
    path.write_text("http://a:1\nhttp://b:23\n")
    for size in (len(path.read_bytes()) - 1, len(path.read_bytes()) - 2):
        monkeypatch.setattr("dovetail.routing.membership.MAX_FILE_BYTES", size)
        with pytest.raises(SourceError, match=f"must have at most {size} bytes"):
            UrlFile(path).read()


def test_watched_file_changes_the_replicas(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "urls"
    path.write_text("http://a:1\nhttp://b:2  # the second\n\n")

    async def check() -> None:
        fleet = Fleet(source=UrlFile(path))
        await fleet.pool.start()
        assert fleet.urls == {"http://a:1", "http://b:2"}
        path.write_text("http://b:2\nhttp://c:3\n")
        await fleet.membership.refresh()
        assert fleet.urls == {"http://b:2", "http://c:3"}
        for invalid in ("", "http://d:4\nftp://e\n"):  # the last valid version stays
            path.write_text(invalid)
            await fleet.membership.refresh()
            assert fleet.urls == {"http://b:2", "http://c:3"}
        path.unlink()
        await fleet.membership.refresh()
        assert fleet.urls == {"http://b:2", "http://c:3"}
        path.write_text("http://d:4\n")
        fleet.membership.start()
        while fleet.urls != {"http://d:4"}:  # noqa: ASYNC110 - no event exists
            await asyncio.sleep(0)
        await fleet.membership.stop()
        await fleet.pool.stop()

    run_async(check)
    reasons = [one.__dict__["fields"]["reason"] for one in caplog.records if "rejected" in one.msg]
    assert "contains no URL" in reasons[0]
    assert "expected an http://" in reasons[1]
    assert "cannot be read" in reasons[2]


def test_dns_name_has_a_replica_per_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver is replaced, because the names of this machine do not change."""
    addresses = [["10.0.0.1", "10.0.0.2"], ["10.0.0.2", "10.0.0.3"], None]

    def resolve(host: str, port: int, **options: Any) -> list[Any]:
        assert (host, port) == ("engines", 8000)
        found = addresses.pop(0)
        if found is None:
            raise socket.gaierror("no such name")
        return [(0, 0, 0, "", (one, port)) for one in found]

    async def check() -> None:
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        fleet = Fleet(source=DnsName("http://engines:8000"))
        await fleet.pool.start()
        assert fleet.urls == {"http://10.0.0.1:8000", "http://10.0.0.2:8000"}
        for _ in range(2):  # a name that cannot be resolved keeps its replicas
            await fleet.membership.refresh()
            assert fleet.urls == {"http://10.0.0.2:8000", "http://10.0.0.3:8000"}
        await fleet.pool.stop()

    run_async(check)


def test_real_name_is_resolved() -> None:
    assert "http://127.0.0.1:8000/base" in DnsName("http://localhost:8000/base").read()
