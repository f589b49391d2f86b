"""A response that runs in the background, and the log of its frames."""

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

CHUNK_BYTES = 1 << 16  # sent at a time

ResponseKey = tuple[str, str]  # tenant and id


class FrameLog:
    """The frames of one stream so far, with a notification for new frames."""

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
        """Return the end index of the chunks to send together from `at`: small ones are joined."""
        size, end = len(self.chunks[at]), at + 1
        while end < len(self.chunks) and size + len(self.chunks[end]) <= CHUNK_BYTES:
            size += len(self.chunks[end])
            end += 1
        return end

    def head(self, size: int) -> bytes:
        """Return the first `size` bytes."""
        parts: list[bytes] = []
        for frames in self.chunks:
            if size <= 0:
                break
            parts.append(frames[:size])
            size -= len(frames)
        return b"".join(parts)

    async def wait(self) -> None:
        """Wait for more frames or for the end of the stream."""
        await self._changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class BackgroundRun:
    """A response in progress. It takes the place of the client: it receives the response."""

    __slots__ = ("_encoder", "_saver", "cancelled", "deleted", "frames", "is_stored", "task")

    def __init__(self, saver: ResponseSaver, encoder: ResponsesEncoder) -> None:
        self._saver = saver
        self._encoder = encoder
        self.frames = FrameLog()
        self.cancelled = asyncio.Event()
        self.deleted = False
        self.is_stored = False  # whether the store was seen to have it
        self.task: asyncio.Task[None] | None = None

    @property
    def response(self) -> StoredResponse | None:
        """The response as last saved; None if it was deleted."""
        return None if self.deleted else self._saver.response

    @property
    def is_running(self) -> bool:
        """Whether the run has not saved its final state."""
        return self._saver.response is not None and self._saver.response.running

    async def receive(self) -> Message:
        """Wait for the cancellation of the run, and report it as a disconnect."""
        await self.cancelled.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.frames.append(message.get("body") or b"")

    async def stop(self) -> None:
        """Cancel the run and wait until it has finished and its final state is saved."""
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
        """Save the current state with a heartbeat. Returns None if the run has finished."""
        stored = self._saver.response
        if stored is None or not stored.running:
            return None
        encoder = self._encoder
        now = encoder.in_progress() if self.frames.chunks else encoder.queued()
        return self._saver.save(now, heartbeat_at=time.time())

    async def wait_persisted(self) -> None:
        await self._saver.wait_persisted()

    def mark_deleted(self) -> None:
        """Mark the response as deleted, so that it is not stored again."""
        self.deleted = True
        self._saver.disable_store()


_SEQUENCE_NUMBER = re.compile(rb'"sequence_number":(\d+)')


class ResponsePeers(Protocol):
    """Access to responses of the other worker processes. At most one of them runs a response."""

    async def follow(self, key: ResponseKey, after: int) -> AsyncGenerator[bytes] | None:
        """Return the stream of a response after frame number `after`; None if no peer has it.

        The stream raises an error if its process dies, because a truncated stream must not look
        complete. The caller closes the stream.
        """

    async def cancel(self, key: ResponseKey) -> bool:
        """Cancel a run and wait until its state is stored. Returns False if no peer runs it."""

    async def forget(self, key: ResponseKey) -> None:
        """Have all peers drop their data of a deleted response."""

    def publish(self, key: ResponseKey, frames: FrameLog) -> None:
        """Let peers that cannot reach this process read the stream of a run that starts here."""


class NoResponsePeers:
    """The peers of a server with a single process: none."""

    async def follow(self, key: ResponseKey, after: int) -> AsyncGenerator[bytes] | None:
        return None

    async def cancel(self, key: ResponseKey) -> bool:
        return False

    async def forget(self, key: ResponseKey) -> None:
        return None

    def publish(self, key: ResponseKey, frames: FrameLog) -> None:
        return None


async def read_chunks(frames: FrameLog, after: int = -1) -> AsyncGenerator[bytes]:
    """Yield the frames with a number higher than `after`, in chunks.

    Unread frames stay in the log, which all followers share.
    """
    at = 0
    while at < len(frames.chunks) or not frames.ended:
        if at == len(frames.chunks):
            await frames.wait()
            continue
        end = frames.batch_end(at)
        body = b"".join(frames_after(b"".join(frames.chunks[at:end]), after))
        at = end
        for start in range(0, len(body), CHUNK_BYTES):
            yield body[start : start + CHUNK_BYTES]


async def send_stream(exchange: ApiExchange, stream: AsyncGenerator[bytes]) -> None:
    """Send a stream to a client, with backpressure."""
    async with aclosing(stream):
        await exchange.start_response(200, EVENT_STREAM_CONTENT_TYPE, STREAM_HEADERS)
        async with DisconnectGuard(exchange.receive) as guard:
            async for chunk in stream:
                await exchange.write(chunk)
            guard.release()
    await exchange.end()


def frames_after(frames: bytes, after: int) -> list[bytes]:
    """Return the frames with a number higher than `after`. The frames are in order."""
    first = _SEQUENCE_NUMBER.search(frames)
    if after < 0 or (first is not None and int(first[1]) > after):
        return [frames]
    selected: list[bytes] = []
    for frame in frames.split(b"\n\n"):
        number = _SEQUENCE_NUMBER.search(frame)
        if number is not None and int(number[1]) > after:
            selected.append(frame + b"\n\n")
    return selected
