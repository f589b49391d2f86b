"""How the processes of one server ask each other: who answers, how much waits, what breaks off."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from http_fixture import run

from dovetail.server import worker_peers as siblings_module
from dovetail.server.worker_peers import PeerDisconnected, PeerHandler, PeerRequest, WorkerPeers

PIECE = 1 << 16
ASKED = PeerRequest("story", "tenant", "id", 7)


async def nothing(question: PeerRequest) -> AsyncGenerator[bytes]:
    none: list[bytes] = []
    for frame in none:
        yield frame


async def hangs(question: PeerRequest) -> AsyncGenerator[bytes]:
    await asyncio.Event().wait()
    yield b""


@asynccontextmanager
async def family(folder: Path, *told: PeerHandler) -> AsyncIterator[WorkerPeers]:
    """One that asks, and a sibling for each way to answer."""
    count = len(told) + 1
    asker, *others = [WorkerPeers(folder, at, count) for at in range(count)]
    for one, tell in zip(others, told, strict=True):
        one.register("story", tell)
        await one.open()
    try:
        yield asker
    finally:
        for one in others:
            await one.close()


def test_owner_streams_the_response_frame_by_frame(tmp_path: Path) -> None:
    heard = []

    async def story(question: PeerRequest) -> AsyncGenerator[bytes]:
        heard.append(question)
        for frame in (b"once", b"", b"upon" * 100_000):
            yield frame

    async def scene() -> None:
        async with family(tmp_path, nothing, hangs, story) as asker:
            found = await asker.request_first(ASKED)
            assert found is not None
            assert [frame async for frame in found] == [b"", b"upon" * 100_000]
            assert heard == [ASKED]

    run(scene)


def test_who_is_silent_or_away_has_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings_module, "PEER_TIMEOUT_SECONDS", 0.05)

    async def scene() -> None:
        async with family(tmp_path, nothing, hangs) as asker:
            (tmp_path / "worker-1").unlink()
            assert await asker.request_first(ASKED) is None
            assert await asker.request_all(ASKED, 0.05) == {}

    run(scene)


def test_each_worker_returns_its_own_frame(tmp_path: Path) -> None:
    def says(frame: bytes) -> PeerHandler:
        async def tell(question: PeerRequest) -> AsyncGenerator[bytes]:
            yield frame

        return tell

    async def scene() -> None:
        async with family(tmp_path, says(b"a"), nothing, says(b"c")) as asker:
            assert await asker.request_all(ASKED) == {1: b"a", 3: b"c"}
            assert await asker.request_all(PeerRequest("unknown")) == {}

    run(scene)


def test_what_is_not_read_is_not_made(tmp_path: Path) -> None:
    made = 0

    async def story(question: PeerRequest) -> AsyncGenerator[bytes]:
        nonlocal made
        for _ in range(400):
            yield b"x" * PIECE
            made += 1

    async def scene() -> None:
        async with family(tmp_path, story) as asker:
            found = await asker.request_first(ASKED)
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

    async def story(question: PeerRequest) -> AsyncGenerator[bytes]:
        try:
            yield b"once"
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def scene() -> None:
        async with family(tmp_path, story) as asker:
            found = await asker.request_first(ASKED)
            assert found is not None
            await found.aclose()
            await ended.wait()

    run(scene)


@pytest.mark.parametrize("how", ["it fails", "it ends"])
def test_truncated_response_raises(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(siblings_module, "PEER_TIMEOUT_SECONDS", 0.05)

    async def story(question: PeerRequest) -> AsyncGenerator[bytes]:
        yield b"once"
        yield b"upon"
        if how == "it fails":
            raise ValueError("lost the thread")
        await asyncio.Event().wait()

    async def scene() -> None:
        async with family(tmp_path, story) as asker:
            found = await asker.request_first(ASKED)
            assert found is not None
            assert await anext(found) == b"upon"
            rest = asyncio.create_task(_next(found))
        with pytest.raises(PeerDisconnected):
            await rest

    run(scene)


async def _next(told: AsyncGenerator[bytes]) -> bytes:
    return await anext(told)
