"""Requests between the worker processes of a server about responses and ended sessions."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec

from dovetail.http.app import App
from dovetail.http.responses.run import FrameLog, ResponseKey, read_chunks
from dovetail.server.follower_limit import MAX_FOLLOWED_STREAMS, FollowerLimit
from dovetail.server.worker_peers import (
    PeerDisconnected,
    PeerRequest,
    WorkerMetrics,
    WorkerPeers,
    await_first_frame,
)
from dovetail.ui.data import UiData, UiQuery
from dovetail_model import Identity

MAX_PENDING_RELEASES = 256  # further sessions are released when their space is needed
CANCEL_TIMEOUT_SECONDS = 30.0  # until a cancelled run has ended

FOLLOW, CANCEL, FORGET, RELEASE = "follow", "cancel", "forget", "release"
UI = "ui"


@asynccontextmanager
async def join_peers(
    app: App,
    folder: Path,
    number: int,
    count: int,
    *,
    max_followed_streams: int = MAX_FOLLOWED_STREAMS,
) -> AsyncIterator[None]:
    """Connect an application to the other `count` - 1 workers while the block runs."""
    peers = WorkerPeers(folder, number, count)
    app.render_metrics = WorkerMetrics(app.metrics.registry, peers).render
    app.background.peers = _PeerResponses(peers, max_followed_streams)
    _PeerRequestHandlers(app).register(peers)
    sessions = _PeerSessions(peers)
    app.service.release_in_peers = sessions.release
    if app.ui is not None:
        _share_ui(app.ui, peers, count)
    await peers.open()
    try:
        yield
    finally:
        await sessions.close()
        await peers.close()


def _share_ui(data: UiData, peers: WorkerPeers, count: int) -> None:
    """Let the web UI of every worker show the requests of all workers."""

    async def gather(query: UiQuery) -> Iterable[bytes]:
        request = PeerRequest(UI, id=msgspec.json.encode(query).decode())
        return (await peers.request_all(request)).values()

    async def respond(request: PeerRequest) -> AsyncGenerator[bytes]:
        yield data.query(msgspec.json.decode(request.id, type=UiQuery))

    peers.register(UI, respond)
    data.gather, data.workers = gather, count


class _PeerSessions:
    """Let the other workers release sessions that have ended. No response waits for them."""

    def __init__(self, peers: WorkerPeers) -> None:
        self._peers = peers
        self._tasks: set[asyncio.Task[object]] = set()

    def release(self, identity: Identity) -> None:
        if not identity.session or len(self._tasks) >= MAX_PENDING_RELEASES:
            return
        request = PeerRequest(RELEASE, identity.tenant, identity.session)
        task: asyncio.Task[object] = asyncio.create_task(self._peers.request_all(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _PeerResponses:
    """Client side: send requests to the other workers."""

    def __init__(self, peers: WorkerPeers, max_followed_streams: int) -> None:
        self._peers = peers
        self._followers = FollowerLimit(max_followed_streams)

    async def follow(self, key: ResponseKey, after: int) -> AsyncGenerator[bytes] | None:
        """Return the stream of a response that another worker runs or recently ran."""
        self._followers.check(key[0])
        return await await_first_frame(self._stream(PeerRequest(FOLLOW, *key, after)))

    async def cancel(self, key: ResponseKey) -> bool:
        """Cancel a run of another worker and wait for its end. Returns False if none runs it."""
        frames = await self._peers.request_first(PeerRequest(CANCEL, *key))
        if frames is None:
            return False
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_SECONDS), aclosing(frames):
                async for _ in frames:
                    pass
        except (PeerDisconnected, TimeoutError):
            return False
        return True

    async def forget(self, key: ResponseKey) -> None:
        """Have all workers drop a deleted response, and wait until they have done so."""
        await self._peers.request_all(PeerRequest(FORGET, *key), CANCEL_TIMEOUT_SECONDS)

    def publish(self, key: ResponseKey, frames: FrameLog) -> None:
        """Do nothing: the other workers reach this process."""

    async def _stream(self, request: PeerRequest) -> AsyncGenerator[bytes]:
        with self._followers.hold(request.tenant):
            if (frames := await self._peers.request_first(request)) is None:
                return
            async with aclosing(frames):
                yield b""
                async for part in frames:
                    yield part


class _PeerRequestHandlers:
    """Server side: respond to other workers. The owner of a response sends an empty frame first."""

    def __init__(self, app: App) -> None:
        self._app = app

    def register(self, peers: WorkerPeers) -> None:
        peers.register(FOLLOW, self._follow)
        peers.register(CANCEL, self._cancel)
        peers.register(FORGET, self._forget)
        peers.register(RELEASE, self._release)

    async def _follow(self, request: PeerRequest) -> AsyncGenerator[bytes]:
        frames = self._app.background.find_frames(request.key)
        if frames is None:
            return
        yield b""
        async with aclosing(read_chunks(frames, request.after)) as stream:
            async for part in stream:
                yield part

    async def _cancel(self, request: PeerRequest) -> AsyncGenerator[bytes]:
        background = self._app.background
        if background.is_running(request.key):
            yield b""
            await background.stop(request.key)

    async def _forget(self, request: PeerRequest) -> AsyncGenerator[bytes]:
        await self._app.forget_response(request.key)
        yield b""

    async def _release(self, request: PeerRequest) -> AsyncGenerator[bytes]:
        identity = Identity(tenant=request.tenant, session=request.id)
        self._app.service.release_session(identity)
        yield b""
