"""Background responses of two frontends that share only a real Redis, or a real Redis Cluster."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import openai
import pytest
from background_fixture import Gate, until
from http_fixture import NAME, Stage, run, service, serving
from redis.asyncio import Redis
from redis_cluster import RedisClusterServers
from redis_server import RedisServer

from dovetail.http.options import BackgroundOptions, HttpOptions
from dovetail.pipeline.registry import ModelRegistry
from dovetail.responses.redis import RedisResponseBackend
from dovetail.responses.store import ResponseStore
from dovetail.server import redis_peers
from dovetail.server.redis_peers import join_redis_peers

NO_POLLING = BackgroundOptions(poll_seconds=3600.0)


@pytest.fixture(scope="module", params=["server", "cluster"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    redis: RedisServer | RedisClusterServers = (
        RedisServer() if request.param == "server" else RedisClusterServers()
    )
    redis.start()
    yield redis.url
    redis.remove()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    redis = RedisServer()
    redis.start()
    yield redis
    redis.remove()


@asynccontextmanager
async def frontend(
    url: str, background: BackgroundOptions = NO_POLLING, *, joined: bool = True
) -> AsyncIterator[Stage]:
    """A frontend with an engine of its own. `joined=False`: it receives no messages."""
    made, engine = service()
    store = ResponseStore(RedisResponseBackend(url, timeout=10.0), has_peers=True)
    registry = ModelRegistry(made.entries, {}, store)
    async with serving(HttpOptions(background_options=background), registry=registry) as stage:
        stage.engine = engine
        if not joined:
            yield stage
            return
        async with join_redis_peers(stage.app, url):
            yield stage


async def create(stage: Stage, **fields: Any) -> Any:
    return await stage.openai().responses.create(
        model=NAME, input="Tell", background=True, **fields
    )


def test_another_frontend_cancels_a_run_and_shows_its_output(url: str) -> None:
    async def scene() -> None:
        async with frontend(url) as one, frontend(url) as other:
            gate = Gate(one)
            created = await create(one)
            await until(one, created.id, "in_progress")
            cancelled = await other.openai().responses.cancel(created.id)
            assert cancelled.status == "cancelled"
            assert cancelled.output_text == "Once"
            await gate.ends.get()
            for stage in (one, other):
                final = await stage.openai().responses.retrieve(created.id)
                assert (final.status, final.output_text) == ("cancelled", "Once")

    run(scene)


def test_another_frontend_deletes_a_run(url: str) -> None:
    async def scene() -> None:
        async with frontend(url) as one, frontend(url) as other:
            gate = Gate(one)
            created = await create(one)
            await until(one, created.id, "in_progress")
            await other.openai().responses.delete(created.id)
            for stage in (other, one):
                with pytest.raises(openai.NotFoundError):
                    await stage.openai().responses.retrieve(created.id)
            await gate.ends.get()
            for stage in (other, one):
                with pytest.raises(openai.NotFoundError):
                    await stage.openai().responses.retrieve(created.id)

    run(scene)


@pytest.mark.parametrize("after", [-1, 0, 3])
def test_another_frontend_streams_a_run(url: str, after: int) -> None:
    async def scene() -> None:
        async with frontend(url) as one, frontend(url) as other:
            gate = Gate(one)
            created = await create(one, stream=False)
            query: Any = {} if after < 0 else {"starting_after": after}
            stream = await other.openai().responses.retrieve(created.id, stream=True, **query)
            numbers, text = [], ""
            async for event in stream:
                numbers.append(event.sequence_number)
                if event.type == "response.output_text.delta":
                    text += event.delta
                    gate.opened.set()  # only after the first word has arrived at the other one
            assert numbers == list(range(after + 1, numbers[-1] + 1))
            assert text == "Once upon."
            own = await one.openai().responses.retrieve(created.id, stream=True, **query)
            assert [event.sequence_number async for event in own] == numbers

    run(scene)


def test_polling_on_another_frontend_shows_the_progress(url: str) -> None:
    background = BackgroundOptions(poll_seconds=0.02)

    async def scene() -> None:
        async with frontend(url, background) as one, frontend(url, background) as other:
            gate = Gate(one)
            created = await create(one)
            await until(other, created.id, "in_progress")
            gate.opened.set()
            assert (await until(other, created.id, "completed")).output_text == "Once upon."

    run(scene)


def test_a_lost_message_only_delays_the_cancellation(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frontend with the run does not receive the message, and finds the end in the store."""
    monkeypatch.setattr(redis_peers, "CANCEL_TIMEOUT_SECONDS", 0.1)
    background = BackgroundOptions(poll_seconds=0.05, heartbeat_seconds=0.0)

    async def scene() -> None:
        async with frontend(url, background, joined=False) as one, frontend(url) as other:
            gate = Gate(one)
            created = await create(one)
            await until(one, created.id, "in_progress")
            assert (await other.openai().responses.cancel(created.id)).status == "cancelled"
            await gate.ends.get()
            for stage in (one, other):
                final = await stage.openai().responses.retrieve(created.id)
                assert final.status == "cancelled"

    run(scene)


@pytest.mark.parametrize("joined", [True, False])
def test_a_terminal_state_never_changes(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, joined: bool
) -> None:
    """Races of the end of a run, its heartbeats, cancellations and deletions on both frontends."""
    monkeypatch.setattr(redis_peers, "CANCEL_TIMEOUT_SECONDS", 0.05)
    background = BackgroundOptions(poll_seconds=0.002, heartbeat_seconds=0.0)
    dice = random.Random(4)

    async def race(one: Stage, other: Stage) -> set[str]:
        gate = Gate(one)
        created = await create(one)
        seen: set[str] = set()

        async def end() -> None:
            await asyncio.sleep(dice.random() * 0.05)
            gate.opened.set()

        async def change(stage: Stage) -> None:
            await asyncio.sleep(dice.random() * 0.05)
            responses = stage.openai().responses
            with suppress(openai.NotFoundError):
                if dice.random() < 0.3:
                    await responses.delete(created.id)
                    seen.add("deleted")
                else:
                    seen.add(str((await responses.cancel(created.id)).status))

        await asyncio.gather(end(), change(other), change(dice.choice([one, other])))
        await gate.ends.get()
        while one.app.background.running:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        for stage in (one, other):
            try:
                seen.add(str((await stage.openai().responses.retrieve(created.id)).status))
            except openai.NotFoundError:
                seen.add("deleted")
        return seen

    async def scene() -> None:
        async with (
            frontend(server.url, background, joined=joined) as one,
            frontend(server.url, background) as other,
        ):
            for _ in range(8):
                seen = await race(one, other)
                # Before a response is deleted, it has at most one end.
                assert len(seen - {"deleted"}) <= 1, seen
                assert not seen & {"queued", "in_progress"}, seen

    run(scene)


def test_the_stream_of_a_killed_frontend_ends_with_an_error(server: RedisServer) -> None:
    background = BackgroundOptions(poll_seconds=0.05, stale_seconds=0.5, heartbeat_seconds=3600.0)

    async def scene() -> None:
        async with frontend(server.url) as one, frontend(server.url, background) as other:
            gate = Gate(one)
            created = await create(one)
            stream = await other.openai().responses.retrieve(created.id, stream=True)
            with pytest.raises(openai.APIError):
                _ = [event async for event in stream]
            gate.opened.set()

    run(scene)


def test_streams_continue_after_an_outage_of_redis(server: RedisServer) -> None:
    """Redis is frozen, so it has not lost the stream."""

    async def scene() -> None:
        async with frontend(server.url) as one, frontend(server.url) as other:
            gate = Gate(one)
            created = await create(one)
            text = ""
            stream = await other.openai().responses.retrieve(created.id, stream=True)
            async for event in stream:
                if event.type == "response.output_text.delta":
                    text += event.delta
                    if not gate.opened.is_set():
                        assert server.process is not None
                        server.process.send_signal(signal.SIGSTOP)
                        gate.opened.set()
                        await gate.ends.get()
                        server.process.send_signal(signal.SIGCONT)
            assert text == "Once upon."

    run(scene)


def test_streams_are_complete_after_redis_was_full(server: RedisServer) -> None:
    """A rejected write must not count as one that was repeated."""

    async def scene() -> None:
        async with (
            Redis.from_url(server.url) as admin,
            frontend(server.url) as one,
            frontend(server.url) as other,
        ):
            gate = Gate(one)
            created = await create(one)
            text = ""
            stream = await other.openai().responses.retrieve(created.id, stream=True)
            async for event in stream:
                if event.type == "response.output_text.delta":
                    text += event.delta
                    if not gate.opened.is_set():
                        await admin.config_set("maxmemory", "1")
                        gate.opened.set()
                        await gate.ends.get()
                        await rejected(admin)
                        await admin.config_set("maxmemory", "0")
            assert text == "Once upon."

    async def rejected(admin: Redis) -> None:
        """Wait until Redis has rejected a write to a stream."""
        while True:
            calls = (await admin.info("commandstats")).get("cmdstat_xadd", {})
            if calls.get("rejected_calls"):
                return
            await asyncio.sleep(0.01)

    run(scene)
