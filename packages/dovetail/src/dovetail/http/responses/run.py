"""One response in the making, and the frames that it has made so far."""

import asyncio
import time

from dovetail.http.responses.conversation import Keeping
from dovetail.net.asgi import Message
from dovetail.responses.response import StoredResponse
from dovetail_model import DovetailError
from dovetail_protocols import ResponsesEncoder

PIECE = 1 << 16  # bytes that are sent in one go

Key = tuple[str, str]  # tenant and id


class Frames:
    """The stream of one response so far, and who waits for more."""

    __slots__ = ("_more", "all", "over", "size")

    def __init__(self) -> None:
        self.all: list[bytes] = []
        self.size = 0
        self.over = False
        self._more = asyncio.Event()

    def add(self, frames: bytes) -> None:
        if frames:
            self.all.append(frames)
            self.size += len(frames)
            self._wake()

    def end(self) -> None:
        self.over = True
        self._wake()

    def piece(self, at: int) -> int:
        """Where those end that are sent in one go: a few, or one that is large and not copied."""
        size, end = len(self.all[at]), at + 1
        while end < len(self.all) and size + len(self.all[end]) <= PIECE:
            size += len(self.all[end])
            end += 1
        return end

    def beginning(self, size: int) -> bytes:
        """So many bytes of them, as far as there are."""
        found: list[bytes] = []
        for frames in self.all:
            if size <= 0:
                break
            found.append(frames[:size])
            size -= len(frames)
        return b"".join(found)

    async def more(self) -> None:
        """Returns when there are more of them, or the end."""
        await self._more.wait()

    def _wake(self) -> None:
        waiting, self._more = self._more, asyncio.Event()
        waiting.set()


class Run:
    """One response in the making. It is the client that the answer is sent to."""

    __slots__ = ("_encoder", "_keeping", "cancelled", "deleted", "frames", "task")

    def __init__(self, keeping: Keeping, encoder: ResponsesEncoder) -> None:
        self._keeping = keeping
        self._encoder = encoder
        self.frames = Frames()
        self.cancelled = asyncio.Event()
        self.deleted = False
        self.task: asyncio.Task[None] | None = None

    @property
    def response(self) -> StoredResponse | None:
        """As it was last kept. None: it was deleted."""
        return None if self.deleted else self._keeping.response

    async def receive(self) -> Message:
        """It never says anything, unless the response is called off."""
        await self.cancelled.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.frames.add(message.get("body") or b"")

    async def stop(self) -> None:
        """Calls it off, and returns when it is over: what it ended as is in the store then."""
        self.cancelled.set()
        if self.task is not None:
            await asyncio.wait({self.task})

    async def call_off(self) -> None:
        self.frames.add(self._encoder.cancel())
        self.frames.add(await self._keeping.late())

    async def fail(self, error: DovetailError) -> None:
        self.frames.add(self._encoder.encode([error.failure()]))
        self.frames.add(await self._keeping.late())

    def refresh(self) -> StoredResponse | None:
        """Keeps the response as it is now, with a sign of life. None: it is over."""
        known = self._keeping.response
        if known is None or not known.running:
            return None
        encoder = self._encoder
        now = encoder.in_progress() if self.frames.all else encoder.queued()
        return self._keeping.keep(now, seen=time.time())

    async def written(self) -> None:
        await self._keeping.written()

    def forget(self) -> None:
        """It was deleted: what becomes of it is not kept."""
        self.deleted = True
        self._keeping.forget()
