"""Requests between the worker processes of one server: owners, backpressure and truncation."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from http_fixture import run

from dovetail.server.worker_peers import (
    PEER_TIMEOUT_SECONDS,
    PeerDisconnected,
    PeerHandler,
    PeerRequest,
    WorkerPeers,
)

PIECE = 1 << 16
REQUEST = PeerRequest("story", "tenant", "id", 7)


async def nothing(request: PeerRequest) -> AsyncGenerator[bytes]:
    none: list[bytes] = []
    for frame in none:
        yield frame


async def hangs(request: PeerRequest) -> AsyncGenerator[bytes]:
    await asyncio.Event().wait()
    yield b""


@asynccontextmanager
async def worker_group(
    folder: Path, *handlers: PeerHandler, timeout_seconds: float = PEER_TIMEOUT_SECONDS
) -> AsyncIterator[WorkerPeers]:
    """One worker that sends requests, and a peer for each handler."""
    count = len(handlers) + 1
    requester, *others = [
        WorkerPeers(folder, at, count, timeout_seconds=timeout_seconds) for at in range(count)
    ]
    for one, handler in zip(others, handlers, strict=True):
        one.register("story", handler)
        await one.open()
    try:
        yield requester
    finally:
        for one in others:
            await one.close()


def test_owner_streams_the_response_frame_by_frame(tmp_path: Path) -> None:
    requests = []

    async def story(request: PeerRequest) -> AsyncGenerator[bytes]:
        requests.append(request)
        for frame in (b"once", b"", b"upon" * 100_000):
            yield frame

    async def scene() -> None:
        async with worker_group(tmp_path, nothing, hangs, story) as requester:
            found = await requester.request_first(REQUEST)
            assert found is not None
            assert [frame async for frame in found] == [b"", b"upon" * 100_000]
            assert requests == [REQUEST]

    run(scene)


def test_silent_or_missing_peers_have_no_response(tmp_path: Path) -> None:
    async def scene() -> None:
        async with worker_group(tmp_path, nothing, hangs, timeout_seconds=0.05) as requester:
            (tmp_path / "worker-1").unlink()
            assert await requester.request_first(REQUEST) is None
            assert await requester.request_all(REQUEST, 0.05) == {}

    run(scene)


def test_each_worker_returns_its_own_frame(tmp_path: Path) -> None:
    def respond_with(frame: bytes) -> PeerHandler:
        async def handler(request: PeerRequest) -> AsyncGenerator[bytes]:
            yield frame

        return handler

    async def scene() -> None:
        async with worker_group(
            tmp_path, respond_with(b"a"), nothing, respond_with(b"c")
        ) as requester:
            assert await requester.request_all(REQUEST) == {1: b"a", 3: b"c"}
            assert await requester.request_all(PeerRequest("unknown")) == {}

    run(scene)


def test_unread_responses_apply_backpressure(tmp_path: Path) -> None:
    made = 0

    async def story(request: PeerRequest) -> AsyncGenerator[bytes]:
        nonlocal made
        for _ in range(400):
            yield b"x" * PIECE
            made += 1

    async def scene() -> None:
        async with worker_group(tmp_path, story) as requester:
            found = await requester.request_first(REQUEST)
            assert found is not None
            before = -1
            while made != before:
                before = made
                for _ in range(50):
                    await asyncio.sleep(0)
            assert made < 40
            assert sum([len(frame) async for frame in found]) == 399 * PIECE

    run(scene)


def test_disconnect_cancels_the_response(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def story(request: PeerRequest) -> AsyncGenerator[bytes]:
        try:
            yield b"once"
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def scene() -> None:
        async with worker_group(tmp_path, story) as requester:
            found = await requester.request_first(REQUEST)
            assert found is not None
            await found.aclose()
            await ended.wait()

    run(scene)


@pytest.mark.parametrize("how", ["it fails", "it ends"])
def test_truncated_response_raises(how: str, tmp_path: Path) -> None:
    async def story(request: PeerRequest) -> AsyncGenerator[bytes]:
        yield b"once"
        yield b"upon"
        if how == "it fails":
            raise ValueError("lost the thread")
        await asyncio.Event().wait()

    async def scene() -> None:
        async with worker_group(tmp_path, story, timeout_seconds=0.05) as requester:
            found = await requester.request_first(REQUEST)
            assert found is not None
            assert await anext(found) == b"upon"
            rest = asyncio.create_task(_next(found))
        with pytest.raises(PeerDisconnected):
            await rest

    run(scene)


async def _next(response: AsyncGenerator[bytes]) -> bytes:
    return await anext(response)
