"""One open socket: messages come in, are answered lane by lane, and end with the connection."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from dovetail.http.exchange import ApiExchange
from dovetail.http.memory import request_memory
from dovetail.http.websocket.answer import CLOSED_ERRORS, WebSocketContext, create_exchange
from dovetail.http.websocket.messages import WebSocketRequest, decode_message
from dovetail.net.exchange import Receive
from dovetail_model import RateLimited

IDLE_TIMEOUT_SECONDS = 1800.0  # seconds without a message or an answer: people think between turns
MAX_STREAMS = 16  # answers at once
MAX_QUEUED_MESSAGES = 8  # messages behind the one that is answered, of all lanes
CLOSE_GOING_AWAY = 1001
CLOSE_INTERNAL_ERROR = 1011
CLOSE_SERVICE_RESTART = 1012

ExchangeHandler = Callable[[ApiExchange], Awaitable[None]]


class WebSocketSession:
    """A socket that was accepted. Each lane answers one message at a time, in their order."""

    __slots__ = (
        "_closing", "_queues", "_max_message_bytes", "_receive", "_respond", "_draining", "_context",
        "_tasks", "_queued_bytes",
    )  # fmt: skip

    def __init__(
        self,
        context: WebSocketContext,
        receive: Receive,
        respond: ExchangeHandler,
        max_message_bytes: int,
    ) -> None:
        self._context = context
        self._receive = receive
        self._respond = respond
        self._max_message_bytes = max_message_bytes
        self._queues: dict[str | None, deque[WebSocketRequest]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._queued_bytes = 0  # bytes
        self._draining = False
        self._closing = False

    async def run(self) -> None:
        """Until the client hangs up, or has nothing to say for too long."""
        try:
            while (data := await self._receive_message()) is not None:
                await self._accept_request(decode_message(data))
        finally:
            self._context.disconnected.set()  # what is still answered is answered to nobody
            if self._tasks:
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def drain(self) -> None:
        """The server is about to stop: no more than what is under way is answered."""
        self._draining = True
        if not self._queues:
            self._close_soon(CLOSE_SERVICE_RESTART, "the server restarts")

    def forget_response(self, tenant: str, id: str) -> None:
        """A response was deleted."""
        self._context.local_responses.delete(tenant, id)

    async def _receive_message(self) -> str | bytes | None:
        """The next message; None when there will be none."""
        while True:
            try:
                async with asyncio.timeout(IDLE_TIMEOUT_SECONDS):
                    message = await self._receive()
            except TimeoutError:
                if not self._queues:
                    self._close_soon(CLOSE_GOING_AWAY, "nothing was asked for a long time")
                continue
            if message["type"] == "websocket.disconnect":
                return None
            text: str | None = message.get("text")
            data: bytes = message.get("bytes") or b""
            return data if text is None else text

    async def _accept_request(self, asked: WebSocketRequest) -> None:
        if self._closing:
            return
        line = self._queues.get(asked.stream_id)
        if not self._has_room(asked, line):
            what = "lanes are at work" if line is None else "messages wait"
            busy = RateLimited(f"Too many {what} on this connection.", retry_after=1.0)
            await self._run_request(msgspec.structs.replace(asked, error=busy))
        elif line is not None:
            self._add_queued_bytes(asked.size)
            line.append(asked)
        else:
            self._queues[asked.stream_id] = deque()
            task = asyncio.create_task(self._run_queue(asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _has_room(self, asked: WebSocketRequest, line: deque[WebSocketRequest] | None) -> bool:
        if line is None:
            return len(self._queues) < MAX_STREAMS
        waiting = sum(len(one) for one in self._queues.values())
        if (
            waiting >= MAX_QUEUED_MESSAGES
            or self._queued_bytes + asked.size > self._max_message_bytes
        ):
            return False
        return not request_memory.is_exceeded_by(asked.size, self._max_message_bytes)

    def _add_queued_bytes(self, size: int) -> None:
        """So many bytes more wait, or fewer."""
        self._queued_bytes += size
        request_memory.total_bytes += size

    async def _run_queue(self, asked: WebSocketRequest) -> None:
        """A lane, from its first message until none waits."""
        line = self._queues[asked.stream_id]
        try:
            await self._run_request(asked)
            while line and not self._context.disconnected.is_set():
                asked = line.popleft()
                self._add_queued_bytes(-asked.size)
                await self._run_request(asked)
        finally:
            self._queues.pop(asked.stream_id, None)
            self._add_queued_bytes(-sum(one.size for one in line))
        if self._draining and not self._queues:
            await self._close(CLOSE_SERVICE_RESTART, "the server restarts")

    async def _run_request(self, asked: WebSocketRequest) -> None:
        try:
            await self._respond(create_exchange(asked, self._context))
        except Exception:
            # Half an answer was sent: as with HTTP, it must not look whole. The log says why.
            await self._close(CLOSE_INTERNAL_ERROR, "the answer broke off")

    def _close_soon(self, code: int, reason: str) -> None:
        task = asyncio.create_task(self._close(code, reason))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self, code: int, reason: str) -> None:
        if self._closing or self._context.disconnected.is_set():
            return
        self._closing = True
        with suppress(*CLOSED_ERRORS):
            await self._context.send({"type": "websocket.close", "code": code, "reason": reason})
