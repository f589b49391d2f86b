"""Background responses, which are generated even if their client disconnects.

Each run writes a normal stream to a log of frames that clients can follow.
"""

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from operator import attrgetter

import msgspec

from dovetail.http.drain import DrainController
from dovetail.http.errors import error_status, to_client_error
from dovetail.http.exchange import MAX_PAYLOAD_BYTES, ApiExchange
from dovetail.http.options import DEFAULT_BACKGROUND_OPTIONS, BackgroundOptions
from dovetail.http.responses.conversation import ResponseSaver
from dovetail.http.responses.run import (
    BackgroundRun,
    FrameLog,
    NoResponsePeers,
    ResponseKey,
    ResponsePeers,
    read_chunks,
    send_stream,
)
from dovetail.http.tracker import RequestTracker
from dovetail.net.exchange import ClientDisconnected
from dovetail.pipeline.panics import convert_panics
from dovetail.responses.backend import StoredResponse
from dovetail.responses.store import ResponseStore
from dovetail.storage.faults import StoreError
from dovetail.storage.lru import LruCache
from dovetail.telemetry.metrics import Metrics
from dovetail_model import InternalError, InvalidRequest, RateLimited
from dovetail_protocols import RESPONSES, ResponsesEncoder, split_response

RETRY_AFTER_SECONDS = 5.0

_MAX_SWAPS = 8  # attempts to replace a response that another process may replace, too
_STOPPED_MESSAGE = "The server stopped before the response was complete."

BackgroundWork = Callable[[ApiExchange], Awaitable[None]]


class BackgroundResponses:
    """Start, retrieve and cancel background runs."""

    def __init__(
        self,
        store: ResponseStore,
        metrics: Metrics,
        draining: DrainController | None = None,
        options: BackgroundOptions = DEFAULT_BACKGROUND_OPTIONS,
    ) -> None:
        self._options = options
        self._store = store
        self._metrics = metrics
        self._draining = draining or DrainController()
        self.peers: ResponsePeers = NoResponsePeers()
        self._running: dict[ResponseKey, BackgroundRun] = {}
        self._finished: LruCache[ResponseKey, FrameLog] = LruCache(
            options.max_finished,
            max_size=options.max_finished_bytes,
            size_of=attrgetter("size"),
        )

    @property
    def running(self) -> int:
        return len(self._running)

    def start(
        self,
        exchange: ApiExchange,
        tracker: RequestTracker,
        saver: ResponseSaver,
        encoder: ResponsesEncoder,
        work: BackgroundWork,
    ) -> tuple[FrameLog, bytes]:
        """Start a run. Returns its frame log and the queued response object."""
        queued = encoder.queued()
        response = saver.save(queued, heartbeat_at=time.time())
        run = BackgroundRun(saver, encoder)
        detached = copy.copy(exchange)
        detached.receive, detached.send, detached.status = run.receive, run.send, None
        detached.extensions, detached.extra_headers = {}, []
        key = (response.tenant, response.id)
        self._running[key] = run
        self._metrics.add_background_responses(+1)
        tracker.detached = True
        run.task = asyncio.create_task(self._run(key, run, tracker, work(detached)))
        run.task.add_done_callback(_consume_exception)
        self.peers.publish(key, run.frames)
        if self._store.shared:
            watcher = asyncio.create_task(self._poll_store(key, run))
            run.task.add_done_callback(lambda _: watcher.cancel())
        return run.frames, queued

    def find_frames(self, key: ResponseKey) -> FrameLog | None:
        """Return the stream of a response that runs, or recently ran, in this process."""
        run = self._running.get(key)
        return run.frames if run is not None else self._finished.peek(key)

    async def follow(self, exchange: ApiExchange, id: str, after: int) -> None:
        """Send the stream of a response after frame number `after`.

        Raises `InvalidRequest` if the stream is no longer available.
        """
        key = (exchange.tenant, id)
        frames = self.find_frames(key)
        if frames is not None:
            await send_stream(exchange, read_chunks(frames, after))
            return
        stream = await self.peers.follow(key, after)
        if stream is None:
            raise InvalidRequest(
                f"The stream of '{id}' is no longer available; get the response without `stream`.",
                param="stream",
            )
        # A draining server waits for its own runs and thereby for their followers, but not for
        # runs of other processes. So this follower counts as an active request.
        async with aclosing(stream), self._draining.track(RESPONSES):
            await send_stream(exchange, stream)

    async def refresh(self, response: StoredResponse) -> StoredResponse:
        """Return the current response, marked as failed if no process runs it any more."""
        run = self._running.get((response.tenant, response.id))
        if run is not None and run.frames.chunks and response.status == "queued":
            return run.save_progress() or response
        if run is not None or not response.running:
            return response
        # It may have finished while the store was read: read its final state.
        latest = await self._store.get(response.tenant, response.id)
        if latest is None or not latest.running:
            return latest or response
        if self._store.shared and time.time() - response.heartbeat_at < self._options.stale_seconds:
            return response
        error = {"code": "server_error", "message": _STOPPED_MESSAGE}
        with suppress(StoreError):
            return await self._end_elsewhere(latest, "failed", error)
        return response

    async def cancel(self, response: StoredResponse) -> StoredResponse:
        """Cancel a run in any process. Returns its final state, as it may have finished before."""
        key = (response.tenant, response.id)
        ended = await self.stop(key) or await self.peers.cancel(key)
        latest = await self._store.get(*key)
        if latest is None:  # deleted meanwhile, or never stored
            return _with_status(response, "cancelled", None)
        if ended or not latest.running:
            return latest
        # No process that responds runs it. Another one finds the cancellation in the store.
        return await self._end_elsewhere(latest, "cancelled", None)

    def is_running(self, key: ResponseKey) -> bool:
        return key in self._running

    def find_running(self, key: ResponseKey) -> StoredResponse | None:
        """Return a response that runs in this process if the store failed to save it.

        If the store had it, it was deleted meanwhile, maybe by another process.
        """
        run = self._running.get(key)
        return None if run is None or run.is_stored else run.response

    async def stop(self, key: ResponseKey) -> bool:
        """Cancel a run of this process and wait for its end. Returns False if there is none."""
        run = self._running.get(key)
        if run is None:
            return False
        await run.stop()
        return True

    async def forget(self, key: ResponseKey) -> None:
        """Stop the run of a deleted response and drop all of its data."""
        self._finished.pop(key)
        self._store.evict(*key)
        run = self._running.get(key)
        if run is not None:
            run.mark_deleted()
            await run.stop()
            self._finished.pop(key)
        await self._store.delete(*key)  # the run may have stored it again

    async def close(self) -> None:
        """Stop all runs. Unfinished responses are stored as failed."""
        tasks = [run.task for run in self._running.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def check_capacity(self, tenant: str) -> None:
        """Raise `RateLimited` if there are too many runs."""
        tenant_runs = sum(1 for owner, _ in self._running if owner == tenant)
        frame_bytes = sum(run.frames.size for run in self._running.values())
        if (
            tenant_runs >= self._options.max_running_per_tenant
            or len(self._running) >= self._options.max_running
            or frame_bytes > self._options.max_running_bytes
        ):
            raise RateLimited(
                "Too many background responses are running; retry later.",
                retry_after=RETRY_AFTER_SECONDS,
            )

    async def _run(
        self, key: ResponseKey, run: BackgroundRun, tracker: RequestTracker, work: Awaitable[None]
    ) -> None:
        try:
            with convert_panics():
                await work
        except ClientDisconnected:
            tracker.on_cancelled()
            await run.emit_cancelled()
        except asyncio.CancelledError:
            stopped = InternalError(_STOPPED_MESSAGE)
            stopped.reason = "draining"
            tracker.on_error(stopped, error_status(stopped, RESPONSES))
            await run.emit_failure(stopped)
        except Exception as error:
            failure = to_client_error(error)
            tracker.on_error(failure, error_status(failure, RESPONSES))
            await run.emit_failure(failure)
        finally:
            run.frames.end()
            del self._running[key]
            self._finished.put(key, run.frames)  # clients can follow it until it is evicted
            self._metrics.add_background_responses(-1)
            tracker.finish(
                None if tracker.request_body is None else run.frames.head(MAX_PAYLOAD_BYTES)
            )

    async def _poll_store(self, key: ResponseKey, run: BackgroundRun) -> None:
        """Poll the store for a cancellation by other processes, and save heartbeats for them."""
        last_heartbeat = time.time()
        await run.wait_persisted()
        run.is_stored = await self._store.get(*key) is not None
        while run.is_stored and not run.frames.ended:
            await asyncio.sleep(self._options.poll_seconds)
            stored = await self._store.get(*key)
            if stored is None:
                run.mark_deleted()
            if stored is None or (not stored.running and run.is_running):
                run.cancelled.set()
                return
            is_new = stored.status == "queued" and bool(run.frames.chunks)
            if is_new or time.time() - last_heartbeat > self._options.heartbeat_seconds:
                last_heartbeat = time.time()
                run.save_progress()

    async def _end_elsewhere(
        self, response: StoredResponse, status: str, error: object
    ) -> StoredResponse:
        """Store the end of a response that does not run in this process, unless it has ended.

        Returns its final state. Raises StoreError if the store fails, or if its process replaces
        the response again and again.
        """
        for _ in range(_MAX_SWAPS):
            ended = _with_status(response, status, error)
            if await self._store.swap(response, ended):
                return ended
            latest = await self._store.get(response.tenant, response.id)
            if latest is None or not latest.running:
                return latest or ended
            response = latest
        raise StoreError("The response is being changed; retry later.")


def _with_status(response: StoredResponse, status: str, error: object) -> StoredResponse:
    head, _ = split_response(response.head)
    head |= {
        "status": msgspec.Raw(msgspec.json.encode(status)),
        "error": msgspec.Raw(msgspec.json.encode(error)),
    }
    return msgspec.structs.replace(response, status=status, head=msgspec.json.encode(head))


def _consume_exception(task: "asyncio.Task[None]") -> None:
    with suppress(asyncio.CancelledError):
        task.exception()
