"""One open socket: messages come in, are answered lane by lane, and end with the connection."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from dovetail.http.exchange import Exchange
from dovetail.http.memory import held
from dovetail.http.websocket.answer import CLOSED, Source, exchange_of
from dovetail.http.websocket.messages import Asked, read_message
from dovetail.net.asgi import Receive
from dovetail_model import RateLimited

IDLE_TIMEOUT = 1800.0  # seconds without a message or an answer: people think between turns
MOST_LANES = 16  # answers at once
MOST_WAITING = 8  # messages behind the one that is answered, of all lanes
GOING_AWAY = 1001
FAILED = 1011
RESTART = 1012

Respond = Callable[[Exchange], Awaitable[None]]


class Connection:
    """A socket that was accepted. Each lane answers one message at a time, in their order."""

    __slots__ = (
        "_closing", "_lanes", "_most_bytes", "_receive", "_respond", "_retiring", "_source",
        "_tasks", "_waiting",
    )  # fmt: skip

    def __init__(self, source: Source, receive: Receive, respond: Respond, most_bytes: int) -> None:
        self._source = source
        self._receive = receive
        self._respond = respond
        self._most_bytes = most_bytes
        self._lanes: dict[str | None, deque[Asked]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0  # bytes
        self._retiring = False
        self._closing = False

    async def run(self) -> None:
        """Until the client hangs up, or has nothing to say for too long."""
        try:
            while (data := await self._next()) is not None:
                await self._take(read_message(data))
        finally:
            self._source.gone.set()  # what is still answered is answered to nobody
            if self._tasks:
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def retire(self) -> None:
        """The server is about to stop: no more than what is under way is answered."""
        self._retiring = True
        if not self._lanes:
            self._close_soon(RESTART, "the server restarts")

    def forget(self, tenant: str, id: str) -> None:
        """A response was deleted."""
        self._source.local.delete(tenant, id)

    async def _next(self) -> str | bytes | None:
        """The next message; None when there will be none."""
        while True:
            try:
                async with asyncio.timeout(IDLE_TIMEOUT):
                    message = await self._receive()
            except TimeoutError:
                if not self._lanes:
                    self._close_soon(GOING_AWAY, "nothing was asked for a long time")
                continue
            if message["type"] == "websocket.disconnect":
                return None
            text: str | None = message.get("text")
            data: bytes = message.get("bytes") or b""
            return data if text is None else text

    async def _take(self, asked: Asked) -> None:
        if self._closing:
            return
        line = self._lanes.get(asked.lane)
        if not self._has_room(asked, line):
            what = "lanes are at work" if line is None else "messages wait"
            busy = RateLimited(f"Too many {what} on this connection.", retry_after=1.0)
            await self._answer(msgspec.structs.replace(asked, fault=busy))
        elif line is not None:
            self._wait(asked.size)
            line.append(asked)
        else:
            self._lanes[asked.lane] = deque()
            task = asyncio.create_task(self._work(asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _has_room(self, asked: Asked, line: deque[Asked] | None) -> bool:
        if line is None:
            return len(self._lanes) < MOST_LANES
        waiting = sum(len(one) for one in self._lanes.values())
        if waiting >= MOST_WAITING or self._waiting + asked.size > self._most_bytes:
            return False
        return not held.is_too_much(asked.size, self._most_bytes)

    def _wait(self, size: int) -> None:
        """So many bytes more wait, or fewer."""
        self._waiting += size
        held.size += size

    async def _work(self, asked: Asked) -> None:
        """A lane, from its first message until none waits."""
        line = self._lanes[asked.lane]
        try:
            await self._answer(asked)
            while line and not self._source.gone.is_set():
                asked = line.popleft()
                self._wait(-asked.size)
                await self._answer(asked)
        finally:
            self._lanes.pop(asked.lane, None)
            self._wait(-sum(one.size for one in line))
        if self._retiring and not self._lanes:
            await self._close(RESTART, "the server restarts")

    async def _answer(self, asked: Asked) -> None:
        try:
            await self._respond(exchange_of(asked, self._source))
        except Exception:
            # Half an answer was sent: as with HTTP, it must not look whole. The log says why.
            await self._close(FAILED, "the answer broke off")

    def _close_soon(self, code: int, reason: str) -> None:
        task = asyncio.create_task(self._close(code, reason))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self, code: int, reason: str) -> None:
        if self._closing or self._source.gone.is_set():
            return
        self._closing = True
        with suppress(*CLOSED):
            await self._source.send({"type": "websocket.close", "code": code, "reason": reason})
