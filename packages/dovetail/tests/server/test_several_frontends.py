"""Two frontends that share a Redis: any of them serves any turn, and either can be replaced.

A frontend waits for Redis for a limited time before it ends a response.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from frontend_fleet import (
    Counts,
    Session,
    check_prefixes,
    frontends,
    play,
    recording_engine,
)
from redis_cluster import RedisClusterServers
from redis_server import RedisServer


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture
def cluster() -> Iterator[RedisClusterServers]:
    servers = RedisClusterServers()
    servers.start()
    yield servers
    servers.remove()


def _kill_one(folder: Path, store: str, streams: int, decode_rate: int) -> Counts:
    """Kill a frontend while streams run. Returns what the clients saw."""
    counts = Counts()
    with (
        recording_engine(folder, decode_rate) as engine,
        frontends(folder, engine, store) as both,
    ):
        sessions = [Session(at, [one.url for one in both], counts) for at in range(streams)]

        async def main() -> None:
            playing = asyncio.create_task(play(sessions, killed.is_set, 3))
            while counts.turns < streams and not playing.done():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await asyncio.to_thread(both[0].kill)
            killed.set()
            await playing

        killed = asyncio.Event()
        asyncio.run(main())
        used = counts.used
        assert all(used[one.url] for one in both)
    prefixes = check_prefixes(folder / "record")
    assert prefixes.continued >= 3 * streams
    assert prefixes.lost_tokens == 0
    assert counts.broken > 0  # it was killed in the middle of streams
    return counts


def _restart_both(folder: Path, store: str, streams: int, decode_rate: int) -> Counts:
    """Restart one frontend after the other while streams run."""
    counts = Counts()
    with (
        recording_engine(folder, decode_rate) as engine,
        frontends(folder, engine, store) as both,
    ):
        sessions = [Session(at, [one.url for one in both], counts) for at in range(streams)]
        restarted = asyncio.Event()

        async def main() -> None:
            playing = asyncio.create_task(play(sessions, restarted.is_set, 3))
            for one in both:
                before = counts.turns
                while counts.turns < before + streams and not playing.done():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                await asyncio.to_thread(one.drain)
                await asyncio.to_thread(one.start)
            restarted.set()
            await playing

        asyncio.run(main())
    prefixes = check_prefixes(folder / "record")
    assert prefixes.continued >= 3 * streams
    assert prefixes.lost_tokens == 0
    assert counts.broken == 0  # each frontend completed its streams before it ended
    return counts


@pytest.mark.fleet
def test_clients_of_a_killed_frontend_continue_on_the_other(
    tmp_path: Path, redis: RedisServer
) -> None:
    _kill_one(tmp_path, redis.url, streams=12, decode_rate=30)


@pytest.mark.fleet
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["redis", "cluster"])
def test_rolling_restart_under_200_streams(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    store: str = request.getfixturevalue(kind).url
    print(_restart_both(tmp_path, store, streams=200, decode_rate=10))


@pytest.mark.fleet
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["redis", "cluster"])
def test_killed_frontend_under_200_streams(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    store: str = request.getfixturevalue(kind).url
    print(_kill_one(tmp_path, store, streams=200, decode_rate=10))
