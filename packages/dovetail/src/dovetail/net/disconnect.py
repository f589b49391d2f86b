"""Work that is worth doing only while the client is there."""

import asyncio
from types import TracebackType
from typing import Self

from dovetail.net.asgi import Receive
from dovetail.net.exchange import Gone


class Lifeline:
    """Cancels what runs inside of it when the client hangs up, and raises `Gone` then.

    One task waits for the client's end; the work itself is not wrapped, so it costs nothing.
    """

    __slots__ = ("_cut", "_held", "_receive", "_watcher", "_work")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._work: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._held = True
        self._cut = False

    async def __aenter__(self) -> Self:
        self._work = asyncio.current_task()
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
        if self._cut and self._work is not None:
            self._work.uncancel()
            if kind is None or issubclass(kind, asyncio.CancelledError):
                raise Gone from None

    def release(self) -> None:
        """Nothing more is to be cancelled: the answer is as good as sent."""
        self._held = False
        if self._watcher is not None:
            self._watcher.cancel()

    async def _watch(self) -> None:
        message = await self._receive()
        while message["type"] != "http.disconnect":
            message = await self._receive()
        if self._held and self._work is not None:
            self._cut = True
            self._work.cancel()
