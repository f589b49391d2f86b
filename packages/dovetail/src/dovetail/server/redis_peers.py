"""Background responses of frontends that share only Redis.

A message to all frontends (pub/sub) cancels or deletes a run, or releases a session. Messages can
be lost: each frontend also polls the store for the runs that it executes. The frames of a run are
copied to a Redis stream, so that clients can follow it on every frontend.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec
from redis.exceptions import RedisClusterException, RedisError, ResponseError

from dovetail.http.app import App
from dovetail.http.responses.run import FrameLog, ResponseKey, frames_after
from dovetail.responses.backend import StoredResponse
from dovetail.server.follower_limit import MAX_FOLLOWED_STREAMS, FollowerLimit
from dovetail.server.worker_peers import PeerDisconnected
from dovetail.storage.redis_client import RedisClient
from dovetail_model import Identity

CANCEL_TIMEOUT_SECONDS = 3.0  # until a cancelled run has stored its end
STREAM_TIMEOUT_SECONDS = 3.0  # until the stream of a run exists, or is complete after its end
STREAM_AGE_MS = 3_600_000  # of a stream, since its last frame
FINISHED_STREAM_AGE_MS = 600_000

_CALL_TIMEOUT_SECONDS = 5.0
_BATCH_SECONDS = 0.05  # frames that arrive within this time are written together
_BLOCK_MS = 250  # how long one read waits for new frames
_POLL_SECONDS = 0.05
_RETRY_SECONDS = 1.0
_MAX_MESSAGE_TASKS = 256
_DATA, _END = b"d", b"e"  # fields of a stream: frames, and its end
_NOT_NEWER = "equal or smaller"  # in Redis' error for an entry that the stream has already

_CANCEL, _FORGET, _RELEASE = "cancel", "forget", "release"
_log = logging.getLogger(__name__)


class _Message(msgspec.Struct, frozen=True, array_like=True):
    """A message to all frontends about a response, or about a session (`id`) that has ended."""

    operation: str
    tenant: str
    id: str


@asynccontextmanager
async def join_redis_peers(app: App, url: str, *, prefix: str = "dovetail") -> AsyncIterator[None]:
    """Connect an application to the other frontends of its Redis while the block runs."""
    client = RedisClient(url, name="peers", prefix=prefix, timeout=_CALL_TIMEOUT_SECONDS)
    peers = RedisPeers(app, client)
    app.background.peers = peers
    app.service.release_in_peers = peers.release
    await peers.open()
    try:
        yield
    finally:
        await peers.close()


class RedisPeers:
    """The access to background responses of the other frontends."""

    def __init__(self, app: App, client: RedisClient) -> None:
        self._app = app
        self._store = app.service.response_store
        self._client = client
        self._channel = client.make_common_key("peers", "peers")
        self._followers = FollowerLimit(MAX_FOLLOWED_STREAMS)
        self._subscribed = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self._writers: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Subscribe to the messages of the other frontends, if Redis responds."""
        self._listener = asyncio.create_task(self._listen())
        with suppress(TimeoutError):
            async with asyncio.timeout(_RETRY_SECONDS):
                await self._subscribed.wait()

    async def close(self) -> None:
        """Write the ends of finished streams, and disconnect."""
        if self._writers:
            await asyncio.wait(self._writers, timeout=STREAM_TIMEOUT_SECONDS)
        running = [task for task in (self._listener, *self._writers, *self._tasks) if task]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._client.close()

    async def follow(self, key: ResponseKey, after: int) -> AsyncGenerator[bytes] | None:
        """Return the stream of a response of another frontend; None if there is none."""
        self._followers.check(key[0])
        name, deadline = self._stream_name(key), time.monotonic() + STREAM_TIMEOUT_SECONDS
        while not await self._client.call(lambda: self._client.redis.exists(name)):
            stored = await self._store.get(*key)
            if stored is None or not stored.running or time.monotonic() > deadline:
                return None
            await asyncio.sleep(_POLL_SECONDS)
        return self._read(key, after)

    async def cancel(self, key: ResponseKey) -> bool:
        """Cancel a run of another frontend. Returns whether it has stored its end."""
        receivers = await self._send(_CANCEL, *key)
        if receivers is None or (receivers <= 1 and not self._client.is_cluster):
            return False  # no other frontend; in a cluster, a node knows only its own subscribers
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_TIMEOUT_SECONDS):
                while True:
                    stored = await self._store.get(*key)
                    if stored is None or not stored.running:
                        return True
                    await asyncio.sleep(_POLL_SECONDS)
        return False

    async def forget(self, key: ResponseKey) -> None:
        """Delete the stream of a deleted response, and have all frontends stop its run."""
        name = self._stream_name(key)
        await self._client.call(lambda: self._client.redis.delete(name))
        await self._send(_FORGET, *key)

    def release(self, identity: Identity) -> None:
        """Have all frontends release a session that has ended."""
        if identity.session:
            self._start(self._send(_RELEASE, identity.tenant, identity.session))

    def publish(self, key: ResponseKey, frames: FrameLog) -> None:
        """Copy the frames of a run to its stream until it ends."""
        task = asyncio.create_task(self._write(self._stream_name(key), frames))
        self._writers.add(task)
        task.add_done_callback(self._writers.discard)

    def _stream_name(self, key: ResponseKey) -> str:
        return self._client.make_key(key[0], "frames", key[1])

    async def _write(self, name: str, frames: FrameLog) -> None:
        if not await self._append(name, "0-1", {_DATA: b""}, create=True):
            return
        at = 0
        while at < len(frames.chunks) or not frames.ended:
            if at == len(frames.chunks):
                await frames.wait()
                await asyncio.sleep(_BATCH_SECONDS)
                continue
            end = frames.batch_end(at)
            if not await self._append(name, f"{end}-0", {_DATA: b"".join(frames.chunks[at:end])}):
                return
            at = end
        if await self._append(name, f"{at + 1}-0", {_END: b"1"}):
            await self._client.call(
                lambda: self._client.redis.pexpire(name, FINISHED_STREAM_AGE_MS)
            )

    async def _append(
        self, name: str, id: str, fields: dict[bytes, bytes], *, create: bool = False
    ) -> bool:
        """Append an entry, also after an outage. Returns False if the stream was deleted."""

        async def append() -> bool:
            redis = self._client.redis
            try:
                added = await redis.xadd(name, fields, id=id, nomkstream=not create)
            except ResponseError as error:
                if _NOT_NEWER not in str(error):  # Redis is full, or a replica without writes
                    raise
                added = id  # by an attempt that seemed to fail
            await redis.pexpire(name, STREAM_AGE_MS)
            return added is not None

        while True:
            added = await self._client.call(append)
            if added is not None:
                return added
            await asyncio.sleep(_RETRY_SECONDS)

    async def _read(self, key: ResponseKey, after: int) -> AsyncGenerator[bytes]:
        name, last = self._stream_name(key), b"0-0"
        ended_at: float | None = None
        with self._followers.hold(key[0]):
            while True:
                replies = await self._client.call(
                    partial(self._client.redis.xread, {name: last}, block=_BLOCK_MS)
                )
                for _, entries in _items(replies):
                    for id, fields in entries:
                        if _END in fields:
                            return
                        last = id
                        for frame in frames_after(fields[_DATA], after):
                            yield frame
                if not replies:
                    ended_at = await self._check_run(key, ended_at)

    async def _check_run(self, key: ResponseKey, ended_at: float | None) -> float | None:
        """Return when the run was first seen to have ended. Raises if its stream stays incomplete.

        A truncated stream must not look complete.
        """
        stored = await self._store.get(*key)
        if self._is_running(stored):
            return None
        if ended_at is not None and time.monotonic() - ended_at > STREAM_TIMEOUT_SECONDS:
            raise PeerDisconnected("The server that ran the response stopped before its end.")
        return ended_at or time.monotonic()

    def _is_running(self, stored: StoredResponse | None) -> bool:
        if stored is None or not stored.running:
            return False
        return (
            time.time() - stored.heartbeat_at < self._app.options.background_options.stale_seconds
        )

    async def _send(self, operation: str, tenant: str, id: str) -> int | None:
        """Send a message to all frontends. Returns the receivers that Redis knows."""
        body = msgspec.msgpack.encode(_Message(operation, tenant, id))
        return await self._client.call(lambda: self._client.redis.publish(self._channel, body))

    async def _listen(self) -> None:
        while True:
            with suppress(RedisError, RedisClusterException, OSError, TimeoutError):
                if self._client.is_cluster:
                    await self._client.redis.initialize()
                async with self._client.redis.pubsub() as pubsub:
                    await pubsub.subscribe(self._channel)
                    await self._receive(pubsub)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _receive(self, pubsub: Any) -> None:
        while True:
            message = await pubsub.get_message(timeout=_RETRY_SECONDS)
            if message is not None and message["type"] == "subscribe":
                self._subscribed.set()
            elif message is not None:
                with suppress(msgspec.MsgspecError):  # of another version
                    self._handle(msgspec.msgpack.decode(message["data"], type=_Message))

    def _handle(self, message: _Message) -> None:
        key = (message.tenant, message.id)
        if message.operation == _CANCEL and self._app.background.is_running(key):
            self._start(self._app.background.stop(key))
        elif message.operation == _FORGET:
            self._start(self._app.forget_response(key))
        elif message.operation == _RELEASE:
            self._app.service.release_session(Identity(tenant=message.tenant, session=message.id))

    def _start(self, work: Any) -> None:
        if len(self._tasks) >= _MAX_MESSAGE_TASKS:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("peer_message_failed", exc_info=task.exception())


def _items(replies: Any) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """Return the streams of a reply, which is a list or, with RESP3, a map."""
    if isinstance(replies, dict):
        return [(name, [one for part in parts for one in part]) for name, parts in replies.items()]
    return list(replies or [])
