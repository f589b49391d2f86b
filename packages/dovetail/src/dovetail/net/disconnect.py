"""Stop work for a client that has disconnected."""

import asyncio
from types import TracebackType
from typing import Self

from dovetail.net.exchange import ClientDisconnected, Receive


class DisconnectGuard:
    """Cancels the block when the client disconnects, and raises `ClientDisconnected` then.

    One task waits for the disconnect. The work runs in the caller's own task, at no further cost.
    """

    __slots__ = ("_armed", "_disconnected", "_receive", "_task", "_watcher")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._armed = True
        self._disconnected = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._watcher = asyncio.create_task(self._wait_for_disconnect())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
        if self._disconnected and self._task is not None:
            self._task.uncancel()
            if kind is None or issubclass(kind, asyncio.CancelledError):
                raise ClientDisconnected from None

    def release(self) -> None:
        """Cancel nothing from now on: the response is all but sent."""
        self._armed = False
        if self._watcher is not None:
            self._watcher.cancel()

    async def _wait_for_disconnect(self) -> None:
        message = await self._receive()
        while message["type"] != "http.disconnect":
            message = await self._receive()
        if self._armed and self._task is not None:
            self._disconnected = True
            self._task.cancel()
