"""Drain the server: running requests finish, and new requests are rejected.

The server keeps listening during the drain, so that new clients get an error with a retry hint.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext

from dovetail.access.admission import RETRY_AFTER_SECONDS
from dovetail.http.errors import HttpError
from dovetail_protocols import Codec

_log = logging.getLogger(__name__)

_STOPPED_MESSAGE = "The server stopped before the response was complete."


class ServerDraining(HttpError):
    """The server is stopping. The status makes load balancers try another server.

    The kind of the error is one that clients of the API retry.
    """

    reason = "draining"
    status = 503
    headers = (("connection", "close"),)

    def __init__(self, message: str, codec: Codec) -> None:
        super().__init__(message, retry_after=RETRY_AFTER_SECONDS)
        self.kind = codec.draining_error.kind


class DrainController:
    """The state of the drain and the active requests.

    timeout: Seconds that active requests have to finish.
    started: Whether the server is draining.
    """

    __slots__ = ("_aborted", "_active", "_arriving", "_start_callbacks", "started", "timeout")

    def __init__(self, timeout: float = 300.0) -> None:
        self.timeout = timeout
        self.started = False
        self._aborted = False
        self._active: dict[asyncio.Task[object] | None, _ActiveRequest] = {}
        self._arriving: dict[asyncio.Task[object] | None, _ActiveRequest] = {}
        self._start_callbacks: list[Callable[[], None]] = []

    @property
    def active_requests(self) -> int:
        """Number of requests that have not finished."""
        return len(self._active)

    @property
    def arriving_requests(self) -> int:
        """Number of requests that have neither a response nor been counted as active."""
        return len(self._without_response())

    def on_start(self, callback: Callable[[], None]) -> None:
        """Register a callback for the start of the drain."""
        self._start_callbacks.append(callback)

    def start(self) -> None:
        """Start the drain: new requests are rejected from now on."""
        if self.started:
            return
        self.started = True
        _log.warning("drain_started", extra={"fields": {"active_requests": self.active_requests}})
        for callback in self._start_callbacks:
            callback()

    def ensure_response(
        self, codec: Codec, has_started: Callable[[], bool]
    ) -> AbstractAsyncContextManager[None]:
        """Ensure that a request without a response at the end of the drain gets an error.

        This is a request whose body is still arriving: the drain does not wait for it.
        `has_started` returns whether a response was started.
        """
        if self._aborted:
            raise ServerDraining(_STOPPED_MESSAGE, codec)
        task = asyncio.current_task()
        return _TrackedRequest(self._arriving, task, _ActiveRequest(task, codec, has_started))

    def track(self, codec: Codec) -> AbstractAsyncContextManager[None]:
        """Count a request as active while the block runs. Raises if the server is draining."""
        if self.started:
            raise ServerDraining("The server is stopping and accepts no new requests.", codec)
        task = asyncio.current_task()
        if task in self._active:  # part of a request that is already counted
            return nullcontext()
        return _TrackedRequest(self._active, task, _ActiveRequest(task, codec))

    async def run_abortable(self, work: Awaitable[None]) -> None:
        """Run the part of a request that can be aborted with an error in its stream."""
        request = self._active.get(asyncio.current_task())
        try:
            await work
        except asyncio.CancelledError:
            if request is not None:
                request.raise_if_aborted()
            raise
        finally:
            if request is not None:
                request.completed = True

    def abort_all(self) -> None:
        """Abort all requests that are not completed. Their clients get an error."""
        self._aborted = True
        unfinished = [request for request in self._active.values() if not request.completed]
        unfinished += self._without_response()
        if unfinished:
            _log.warning("requests_aborted", extra={"fields": {"requests": len(unfinished)}})
        for request in unfinished:
            request.abort()

    def _without_response(self) -> "list[_ActiveRequest]":
        return [
            request
            for task, request in self._arriving.items()
            if task not in self._active and not request.has_started()
        ]


class _ActiveRequest:
    """A request that a task handles.

    completed: Whether the response was generated completely, though perhaps not sent yet.
    has_started: Returns whether a response was started.
    """

    __slots__ = ("_aborted", "_codec", "_task", "completed", "has_started")

    def __init__(
        self,
        task: "asyncio.Task[object] | None",
        codec: Codec,
        has_started: Callable[[], bool] = lambda: False,
    ) -> None:
        self._task = task
        self.has_started = has_started
        self._codec = codec
        self._aborted = False
        self.completed = False

    def abort(self) -> None:
        if self._task is not None and not self._aborted:
            self._aborted = True
            self._task.cancel()

    def raise_if_aborted(self) -> None:
        """Raise the error for the client if `abort` has cancelled the task."""
        if self._aborted and self._task is not None:
            self._task.uncancel()
            raise ServerDraining(_STOPPED_MESSAGE, self._codec)


class _TrackedRequest:
    """Lists a request while a block runs. A class costs fewer calls than a generator."""

    __slots__ = ("_request", "_requests", "_task")

    def __init__(
        self,
        requests: "dict[asyncio.Task[object] | None, _ActiveRequest]",
        task: "asyncio.Task[object] | None",
        request: _ActiveRequest,
    ) -> None:
        self._requests = requests
        self._task = task
        self._request = request

    async def __aenter__(self) -> None:
        self._requests[self._task] = self._request

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        try:
            if isinstance(error, asyncio.CancelledError):
                self._request.raise_if_aborted()
        finally:
            del self._requests[self._task]
