"""What an application asks of its siblings, and what it answers them."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from dovetail.http.app import App
from dovetail.http.responses.run import ResponseKey, read_chunks
from dovetail.server.worker_peers import (
    PeerDisconnected,
    PeerRequest,
    WorkerMetrics,
    WorkerPeers,
    await_first_frame,
)
from dovetail_model import RateLimited

MAX_FOLLOWED_STREAMS = 256  # streams of siblings that are shown by one process
MAX_FOLLOWED_PER_TENANT = 64  # of one tenant
RETRY_AFTER_SECONDS = 5.0  # seconds
CANCEL_TIMEOUT_SECONDS = 30.0  # seconds for a run to end that was called off

FOLLOW, CANCEL, FORGET = "follow", "cancel", "forget"


@asynccontextmanager
async def join_peers(app: App, folder: Path, number: int, count: int) -> AsyncIterator[None]:
    """Makes an application one of `count` that serve together, for as long as the block lasts."""
    siblings = WorkerPeers(folder, number, count)
    app.render_metrics = WorkerMetrics(app.metrics.registry, siblings).render
    app.background.peers = _PeerResponses(siblings)
    _PeerRequestHandlers(app).register(siblings)
    await siblings.open()
    try:
        yield
    finally:
        await siblings.close()


class _PeerResponses:
    """What is asked about responses."""

    def __init__(self, siblings: WorkerPeers) -> None:
        self._peers = siblings
        self._followed_by_tenant: Counter[str] = Counter()  # by tenant

    async def follow(self, key: ResponseKey, after: int) -> AsyncGenerator[bytes] | None:
        """The stream of a response that one of them makes, or made a while ago."""
        followed = self._followed_by_tenant
        if followed.total() >= MAX_FOLLOWED_STREAMS or followed[key[0]] >= MAX_FOLLOWED_PER_TENANT:
            raise RateLimited("Too many streams are followed.", retry_after=RETRY_AFTER_SECONDS)
        return await await_first_frame(self._stream(PeerRequest(FOLLOW, *key, after)))

    async def cancel(self, key: ResponseKey) -> bool:
        """Whether one of them has called it off, and has seen it to its end."""
        found = await self._peers.request_first(PeerRequest(CANCEL, *key))
        if found is None:
            return False
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_SECONDS), aclosing(found):
                async for _ in found:
                    pass
        except (PeerDisconnected, TimeoutError):
            return False
        return True

    async def forget(self, key: ResponseKey) -> None:
        """Has them let go of a response that was deleted, and waits until they have."""
        await self._peers.request_all(PeerRequest(FORGET, *key), CANCEL_TIMEOUT_SECONDS)

    async def _stream(self, question: PeerRequest) -> AsyncGenerator[bytes]:
        self._followed_by_tenant[question.tenant] += 1
        try:
            if (found := await self._peers.request_first(question)) is None:
                return
            async with aclosing(found):
                yield b""
                async for part in found:
                    yield part
        finally:
            self._followed_by_tenant[question.tenant] -= 1
            self._followed_by_tenant += Counter()  # without those that follow none


class _PeerRequestHandlers:
    """What is answered about responses. First comes an empty frame, from the one that has it."""

    def __init__(self, app: App) -> None:
        self._app = app

    def register(self, peers: WorkerPeers) -> None:
        peers.register(FOLLOW, self._follow)
        peers.register(CANCEL, self._cancel)
        peers.register(FORGET, self._forget)

    async def _follow(self, question: PeerRequest) -> AsyncGenerator[bytes]:
        frames = self._app.background.find_frames(question.key)
        if frames is None:
            return
        yield b""
        async with aclosing(read_chunks(frames, question.after)) as stream:
            async for part in stream:
                yield part

    async def _cancel(self, question: PeerRequest) -> AsyncGenerator[bytes]:
        background = self._app.background
        if background.is_running(question.key):
            yield b""
            await background.stop(question.key)

    async def _forget(self, question: PeerRequest) -> AsyncGenerator[bytes]:
        await self._app.forget_response(question.key)
        yield b""
