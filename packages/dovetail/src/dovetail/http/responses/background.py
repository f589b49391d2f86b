"""Responses that are worked on whether their client stays or not.

Each runs as a stream like any other, into a list of frames. Who wants to see it follows the list.
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
from dovetail.http.exchange import MAX_PAYLOAD_BYTES as MOST_KEPT
from dovetail.http.exchange import ApiExchange
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
from dovetail.responses.backend import StoredResponse
from dovetail.responses.store import ResponseStore
from dovetail.storage.lru import LruCache
from dovetail.telemetry.metrics import Metrics
from dovetail_model import InternalError, InvalidRequest, RateLimited
from dovetail_protocols import RESPONSES, ResponsesEncoder, split_response

RETRY_AFTER_SECONDS = 5.0

_STOPPED_MESSAGE = "The server stopped before the response was complete."

BackgroundWork = Callable[[ApiExchange], Awaitable[None]]


class BackgroundResponses:
    """Starts runs, shows them, calls them off."""

    def __init__(
        self,
        kept: ResponseStore,
        metrics: Metrics,
        draining: DrainController | None = None,
        options: BackgroundOptions = DEFAULT_BACKGROUND_OPTIONS,
    ) -> None:
        self._options = options
        self._store = kept
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
        account: RequestTracker,
        keeping: ResponseSaver,
        encoder: ResponsesEncoder,
        work: BackgroundWork,
    ) -> tuple[FrameLog, bytes]:
        """Begins to work on a response. Gives its frames, and the response object as it is now."""
        queued = encoder.queued()
        response = keeping.save(queued, heartbeat_at=time.time())
        run = BackgroundRun(keeping, encoder)
        apart = copy.copy(exchange)
        apart.receive, apart.send, apart.status = run.receive, run.send, None
        apart.extensions, apart.extra_headers = {}, []
        key = (response.tenant, response.id)
        self._running[key] = run
        self._metrics.add_background_responses(+1)
        account.detached = True
        run.task = asyncio.create_task(self._run(key, run, account, work(apart)))
        run.task.add_done_callback(_consume_exception)
        if self._store.shared:
            watcher = asyncio.create_task(self._poll_store(key, run))
            run.task.add_done_callback(lambda _: watcher.cancel())
        return run.frames, queued

    def find_frames(self, key: ResponseKey) -> FrameLog | None:
        """The stream of a response that is made here, or was a while ago."""
        run = self._running.get(key)
        return run.frames if run is not None else self._finished.peek(key)

    async def follow(self, exchange: ApiExchange, id: str, after: int) -> None:
        """The stream of a response, from behind a frame on. InvalidRequest where it is gone."""
        key = (exchange.tenant, id)
        frames = self.find_frames(key)
        if frames is not None:
            await send_stream(exchange, read_chunks(frames, after))
            return
        stream = await self.peers.follow(key, after)
        if stream is None:
            raise InvalidRequest(
                f"The stream of '{id}' is not at hand: fetch the response without it.",
                param="stream",
            )
        # A server that is told to stop waits for its own runs, and so for who follows them. Of
        # runs elsewhere it knows nothing.
        async with aclosing(stream), self._draining.track(RESPONSES):
            await send_stream(exchange, stream)

    async def refresh(self, response: StoredResponse) -> StoredResponse:
        """The response, or that it failed, where nobody works on it any more."""
        run = self._running.get((response.tenant, response.id))
        if run is not None and run.frames.chunks and response.status == "queued":
            return run.save_progress() or response
        if run is not None or not response.running:
            return response
        # It may have ended while the store was asked: what it ended as is known by now.
        latest = await self._store.get(response.tenant, response.id)
        if latest is None or not latest.running:
            return latest or response
        if self._store.shared and time.time() - response.heartbeat_at < self._options.stale_seconds:
            return response
        error = {"code": "server_error", "message": _STOPPED_MESSAGE}
        return self._save_status(response, "failed", error)

    async def cancel(self, response: StoredResponse) -> StoredResponse:
        """Calls a run off, wherever it is. Gives what it ended as: it may have been over first."""
        key = (response.tenant, response.id)
        ended = await self.stop(key) or await self.peers.cancel(key)
        latest = await self._store.get(*key)
        if latest is None or ended or not latest.running:
            return latest or response
        # Nobody of this server works on it: whoever does hears of it from the store.
        return self._save_status(latest, "cancelled", None)

    def is_running(self, key: ResponseKey) -> bool:
        return key in self._running

    def find_running(self, key: ResponseKey) -> StoredResponse | None:
        """A response that is made here, whether the store could keep it or not."""
        run = self._running.get(key)
        return None if run is None else run.response

    async def stop(self, key: ResponseKey) -> bool:
        """Calls off a run that is here, and returns when it is over. False: there is none."""
        run = self._running.get(key)
        if run is None:
            return False
        await run.stop()
        return True

    async def forget(self, key: ResponseKey) -> None:
        """A response that was deleted is not worked on, and nothing of it is shown any more."""
        self._finished.pop(key)
        self._store.evict(*key)
        run = self._running.get(key)
        if run is not None:
            run.mark_deleted()
            await run.stop()
            self._finished.pop(key)
        await self._store.delete(*key)  # it may have been kept once more since it was deleted

    async def close(self) -> None:
        """The server ends: what is not done is told as failed."""
        tasks = [run.task for run in self._running.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def check_capacity(self, tenant: str) -> None:
        """RateLimited where there are too many."""
        own = sum(1 for owner, _ in self._running if owner == tenant)
        held = sum(run.frames.size for run in self._running.values())
        if (
            own >= self._options.max_running_per_tenant
            or len(self._running) >= self._options.max_running
            or held > self._options.max_running_bytes
        ):
            raise RateLimited(
                "Too many responses are worked on in the background.",
                retry_after=RETRY_AFTER_SECONDS,
            )

    async def _run(
        self, key: ResponseKey, run: BackgroundRun, account: RequestTracker, work: Awaitable[None]
    ) -> None:
        try:
            await work
        except ClientDisconnected:
            account.on_cancelled()
            await run.emit_cancelled()
        except asyncio.CancelledError:
            stopped = InternalError(_STOPPED_MESSAGE)
            stopped.reason = "draining"
            account.on_error(stopped, error_status(stopped, RESPONSES))
            await run.emit_failure(stopped)
        except Exception as error:
            failure = to_client_error(error)
            account.on_error(failure, error_status(failure, RESPONSES))
            await run.emit_failure(failure)
        finally:
            run.frames.end()
            del self._running[key]
            self._finished.put(key, run.frames)  # it can be followed for a while
            self._metrics.add_background_responses(-1)
            account.finish(None if account.request_body is None else run.frames.head(MOST_KEPT))

    async def _poll_store(self, key: ResponseKey, run: BackgroundRun) -> None:
        """Hears from other processes that it is not wanted any more, and tells them it lives."""
        told = time.time()
        await run.wait_persisted()
        was_there = await self._store.get(*key) is not None
        while was_there and not run.frames.ended:
            await asyncio.sleep(self._options.poll_seconds)
            known = await self._store.get(*key)
            if known is None:
                run.mark_deleted()
            if known is None or known.status == "cancelled":
                run.cancelled.set()
                return
            if time.time() - told > self._options.heartbeat_seconds:
                told = time.time()
                run.save_progress()

    def _save_status(self, response: StoredResponse, status: str, error: object) -> StoredResponse:
        """A response whose run is not here, as it stands from now on."""
        head, _ = split_response(response.head)
        head |= {
            "status": msgspec.Raw(msgspec.json.encode(status)),
            "error": msgspec.Raw(msgspec.json.encode(error)),
        }
        changed = msgspec.structs.replace(response, status=status, head=msgspec.json.encode(head))
        self._store.put(changed)
        return changed


def _consume_exception(task: "asyncio.Task[None]") -> None:
    with suppress(asyncio.CancelledError):
        task.exception()
