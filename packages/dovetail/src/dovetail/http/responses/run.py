"""One response in the making, and the frames that it has made so far."""

import asyncio
import time

from dovetail.http.responses.conversation import ResponseSaver
from dovetail.net.exchange import Message
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
