"""One response in the making, and the frames that it has made so far."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from dovetail.http.exchange import ApiExchange
from dovetail.http.response import STREAM_HEADERS
from dovetail.http.responses.conversation import ResponseSaver
from dovetail.net.exchange import EVENT_STREAM_CONTENT_TYPE, DisconnectGuard, Message
from dovetail.responses.backend import StoredResponse
from dovetail_model import DovetailError
from dovetail_protocols import ResponsesEncoder

CHUNK_BYTES = 1 << 16  # bytes that are sent in one go

ResponseKey = tuple[str, str]  # tenant and id


class FrameLog:
    """The stream of one response so far, and who waits for more."""

    __slots__ = ("_changed", "chunks", "ended", "size")

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self.ended = False
        self._changed = asyncio.Event()

    def append(self, frames: bytes) -> None:
        if frames:
            self.chunks.append(frames)
            self.size += len(frames)
            self._notify()

    def end(self) -> None:
        self.ended = True
        self._notify()

    def batch_end(self, at: int) -> int:
        """Where those end that are sent in one go: a few, or one that is large and not copied."""
        size, end = len(self.chunks[at]), at + 1
        while end < len(self.chunks) and size + len(self.chunks[end]) <= CHUNK_BYTES:
            size += len(self.chunks[end])
            end += 1
        return end

    def head(self, size: int) -> bytes:
        """So many bytes of them, as far as there are."""
        found: list[bytes] = []
        for frames in self.chunks:
            if size <= 0:
                break
            found.append(frames[:size])
            size -= len(frames)
        return b"".join(found)

    async def wait(self) -> None:
        """Returns when there are more of them, or the end."""
        await self._changed.wait()

    def _notify(self) -> None:
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()


class BackgroundRun:
    """One response in the making. It is the client that the answer is sent to."""

    __slots__ = ("_encoder", "_saver", "cancelled", "deleted", "frames", "task")

    def __init__(self, keeping: ResponseSaver, encoder: ResponsesEncoder) -> None:
        self._saver = keeping
        self._encoder = encoder
        self.frames = FrameLog()
        self.cancelled = asyncio.Event()
        self.deleted = False
        self.task: asyncio.Task[None] | None = None

    @property
    def response(self) -> StoredResponse | None:
        """As it was last kept. None: it was deleted."""
        return None if self.deleted else self._saver.response

    async def receive(self) -> Message:
        """It never says anything, unless the response is called off."""
        await self.cancelled.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.frames.append(message.get("body") or b"")

    async def stop(self) -> None:
        """Calls it off, and returns when it is over: what it ended as is in the store then."""
        self.cancelled.set()
        if self.task is not None:
            await asyncio.wait({self.task})

    async def emit_cancelled(self) -> None:
        self.frames.append(self._encoder.cancel())
        self.frames.append(await self._saver.release_held_frame())

    async def emit_failure(self, error: DovetailError) -> None:
        self.frames.append(self._encoder.encode([error.to_failure()]))
        self.frames.append(await self._saver.release_held_frame())

    def save_progress(self) -> StoredResponse | None:
        """Keeps the response as it is now, with a sign of life. None: it is over."""
        known = self._saver.response
        if known is None or not known.running:
            return None
        encoder = self._encoder
        now = encoder.in_progress() if self.frames.chunks else encoder.queued()
        return self._saver.save(now, heartbeat_at=time.time())

    async def wait_persisted(self) -> None:
        await self._saver.wait_persisted()

    def mark_deleted(self) -> None:
        """It was deleted: what becomes of it is not kept."""
        self.deleted = True
        self._saver.disable_store()


_SEQUENCE_NUMBER = re.compile(rb'"sequence_number":(\d+)')


class ResponsePeers(Protocol):
    """The other processes of this server. Of a response, one of them at most is at work."""

    async def follow(self, key: ResponseKey, after: int) -> AsyncGenerator[bytes] | None:
        """The stream of a response, from behind a frame on. None: it is at hand nowhere.

        Where its process falls it raises: what is not whole must not look so. It is to be closed.
        """

    async def cancel(self, key: ResponseKey) -> bool:
        """Returns when it is called off and in the store. False: nobody works on it."""

    async def forget(self, key: ResponseKey) -> None:
        """Has them forget what they hold of a response that was deleted."""


class NoResponsePeers:
    """There are no others."""

    async def follow(self, key: ResponseKey, after: int) -> AsyncGenerator[bytes] | None:
        return None

    async def cancel(self, key: ResponseKey) -> bool:
        return False

    async def forget(self, key: ResponseKey) -> None:
        return None


async def read_chunks(frames: FrameLog, after: int = -1) -> AsyncGenerator[bytes]:
    """The frames with a higher number, a little at a time.

    What is not taken yet stays with the frames: there may be many who follow, and they share them.
    """
    at = 0
    while at < len(frames.chunks) or not frames.ended:
        if at == len(frames.chunks):
            await frames.wait()
            continue
        end = frames.batch_end(at)
        body = b"".join(_frames_after(b"".join(frames.chunks[at:end]), after))
        at = end
        for start in range(0, len(body), CHUNK_BYTES):
            yield body[start : start + CHUNK_BYTES]


async def send_stream(exchange: ApiExchange, stream: AsyncGenerator[bytes]) -> None:
    """A stream to whoever stays to see it, no more at a time than is read."""
    async with aclosing(stream):
        await exchange.start_response(200, EVENT_STREAM_CONTENT_TYPE, STREAM_HEADERS)
        async with DisconnectGuard(exchange.receive) as lifeline:
            async for part in stream:
                await exchange.write(part)
            lifeline.release()
    await exchange.end()


def _frames_after(frames: bytes, after: int) -> list[bytes]:
    """The frames with a higher number. They are in order, so mostly it is all or none."""
    first = _SEQUENCE_NUMBER.search(frames)
    if after < 0 or (first is not None and int(first[1]) > after):
        return [frames]
    found: list[bytes] = []
    for frame in frames.split(b"\n\n"):
        number = _SEQUENCE_NUMBER.search(frame)
        if number is not None and int(number[1]) > after:
            found.append(frame + b"\n\n")
    return found
