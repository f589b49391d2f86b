"""Responses that are worked on whether their client stays or not.

Each runs as a stream like any other, into a list of frames. Who wants to see it follows the list.
"""

import asyncio
import copy
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress

import msgspec

from dovetail.http.capture import MOST as MOST_KEPT
from dovetail.http.drain import Draining
from dovetail.http.errors import status_of, told
from dovetail.http.exchange import Exchange
from dovetail.http.responses.conversation import Keeping
from dovetail.http.responses.following import Alone, Others, pieces, show
from dovetail.http.responses.run import Frames, Key, Run
from dovetail.http.tracker import Account
from dovetail.net.exchange import ClientDisconnected
from dovetail.responses.response import StoredResponse
from dovetail.responses.store import ResponseStore
from dovetail.telemetry.metrics import Metrics
from dovetail_model import InternalError, InvalidRequest, RateLimited
from dovetail_protocols import RESPONSES, ResponsesEncoder, split_response

MOST_RUNNING = 256  # of all tenants
MOST_OF_ONE = 64  # of one tenant
MOST_BYTES = 256 << 20  # of frames of all that run: where there are more, none is begun
RETRY_AFTER = 5.0

_HEARTBEAT = 5.0  # seconds between two signs of life of a run
_WATCH = 1.0  # seconds between two looks whether another process has called a run off
_SILENT = 30.0  # seconds after which a run without a sign of life is taken for dead
_FOLLOWED = 64  # runs that are over and can still be followed
_FOLLOWED_BYTES = 32 << 20
_STOPPED = "The server stopped before the response was complete."

Work = Callable[[Exchange], Awaitable[None]]


class Background:
    """Starts runs, shows them, calls them off."""

    def __init__(self, kept: ResponseStore, metrics: Metrics, draining: Draining | None = None) -> None:
        self._kept = kept
        self._metrics = metrics
        self._draining = draining or Draining()
        self.others: Others = Alone()
        self._running: dict[Key, Run] = {}
        self._over: OrderedDict[Key, Frames] = OrderedDict()

    @property
    def running(self) -> int:
        return len(self._running)

    def start(
        self,
        exchange: Exchange,
        account: Account,
        keeping: Keeping,
        encoder: ResponsesEncoder,
        work: Work,
    ) -> tuple[Frames, bytes]:
        """Begins to work on a response. Gives its frames, and the response object as it is now."""
        queued = encoder.queued()
        response = keeping.keep(queued, seen=time.time())
        run = Run(keeping, encoder)
        apart = copy.copy(exchange)
        apart.receive, apart.send, apart.status = run.receive, run.send, None
        apart.extensions, apart.extra = {}, []
        key = (response.tenant, response.id)
        self._running[key] = run
        self._metrics.add_background_responses(+1)
        account.detached = True
        run.task = asyncio.create_task(self._work(key, run, account, work(apart)))
        run.task.add_done_callback(_seen)
        if self._kept.shared:
            watcher = asyncio.create_task(self._watch(key, run))
            run.task.add_done_callback(lambda _: watcher.cancel())
        return run.frames, queued

    def frames(self, key: Key) -> Frames | None:
        """The stream of a response that is made here, or was a while ago."""
        run = self._running.get(key)
        return run.frames if run is not None else self._over.get(key)

    async def follow(self, exchange: Exchange, id: str, after: int) -> None:
        """The stream of a response, from behind a frame on. InvalidRequest where it is gone."""
        key = (exchange.tenant, id)
        frames = self.frames(key)
        if frames is not None:
            await show(exchange, pieces(frames, after))
            return
        stream = await self.others.follow(key, after)
        if stream is None:
            raise InvalidRequest(
                f"The stream of '{id}' is not at hand: fetch the response without it.",
                param="stream",
            )
        # A server that is told to stop waits for its own runs, and so for who follows them. Of
        # runs elsewhere it knows nothing.
        async with aclosing(stream), self._draining.answering(RESPONSES):
            await show(exchange, stream)

    async def current(self, response: StoredResponse) -> StoredResponse:
        """The response, or that it failed, where nobody works on it any more."""
        run = self._running.get((response.tenant, response.id))
        if run is not None and run.frames.all and response.status == "queued":
            return run.refresh() or response
        if run is not None or not response.running:
            return response
        # It may have ended while the store was asked: what it ended as is known by now.
        latest = await self._kept.get(response.tenant, response.id)
        if latest is None or not latest.running:
            return latest or response
        if self._kept.shared and time.time() - response.seen < _SILENT:
            return response
        error = {"code": "server_error", "message": _STOPPED}
        return self._rewrite(response, "failed", error)

    async def cancel(self, response: StoredResponse) -> StoredResponse:
        """Calls a run off, wherever it is. Gives what it ended as: it may have been over first."""
        key = (response.tenant, response.id)
        ended = await self.stop(key) or await self.others.cancel(key)
        latest = await self._kept.get(*key)
        if latest is None or ended or not latest.running:
            return latest or response
        # Nobody of this server works on it: whoever does hears of it from the store.
        return self._rewrite(latest, "cancelled", None)

    def works_on(self, key: Key) -> bool:
        return key in self._running

    def known(self, key: Key) -> StoredResponse | None:
        """A response that is made here, whether the store could keep it or not."""
        run = self._running.get(key)
        return None if run is None else run.response

    async def stop(self, key: Key) -> bool:
        """Calls off a run that is here, and returns when it is over. False: there is none."""
        run = self._running.get(key)
        if run is None:
            return False
        await run.stop()
        return True

    async def abandon(self, key: Key) -> None:
        """A response that was deleted is not worked on, and nothing of it is shown any more."""
        self._over.pop(key, None)
        self._kept.evict(*key)
        run = self._running.get(key)
        if run is not None:
            run.forget()
            await run.stop()
            self._over.pop(key, None)
        await self._kept.delete(*key)  # it may have been kept once more since it was deleted

    async def close(self) -> None:
        """The server ends: what is not done is told as failed."""
        tasks = [run.task for run in self._running.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def make_sure_of_room(self, tenant: str) -> None:
        """RateLimited where there are too many."""
        own = sum(1 for owner, _ in self._running if owner == tenant)
        held = sum(run.frames.size for run in self._running.values())
        if own >= MOST_OF_ONE or len(self._running) >= MOST_RUNNING or held > MOST_BYTES:
            raise RateLimited(
                "Too many responses are worked on in the background.", retry_after=RETRY_AFTER
            )

    async def _work(self, key: Key, run: Run, account: Account, work: Awaitable[None]) -> None:
        try:
            await work
        except ClientDisconnected:
            account.called_off()
            await run.call_off()
        except asyncio.CancelledError:
            stopped = InternalError(_STOPPED)
            stopped.reason = "draining"
            account.failed(stopped, status_of(stopped, RESPONSES))
            await run.fail(stopped)
        except Exception as error:
            failure = told(error)
            account.failed(failure, status_of(failure, RESPONSES))
            await run.fail(failure)
        finally:
            run.frames.end()
            del self._running[key]
            self._put_away(key, run.frames)
            self._metrics.add_background_responses(-1)
            account.close(None if account.body is None else run.frames.beginning(MOST_KEPT))

    async def _watch(self, key: Key, run: Run) -> None:
        """Hears from other processes that it is not wanted any more, and tells them it lives."""
        told = time.time()
        await run.written()
        was_there = await self._kept.get(*key) is not None
        while was_there and not run.frames.over:
            await asyncio.sleep(_WATCH)
            known = await self._kept.get(*key)
            if known is None:
                run.forget()
            if known is None or known.status == "cancelled":
                run.cancelled.set()
                return
            if time.time() - told > _HEARTBEAT:
                told = time.time()
                run.refresh()

    def _put_away(self, key: Key, frames: Frames) -> None:
        """It can be followed for a while."""
        self._over[key] = frames
        size = sum(one.size for one in self._over.values())
        while self._over and (len(self._over) > _FOLLOWED or size > _FOLLOWED_BYTES):
            size -= self._over.popitem(last=False)[1].size

    def _rewrite(self, response: StoredResponse, status: str, error: object) -> StoredResponse:
        """A response whose run is not here, as it stands from now on."""
        head, _ = split_response(response.head)
        head |= {
            "status": msgspec.Raw(msgspec.json.encode(status)),
            "error": msgspec.Raw(msgspec.json.encode(error)),
        }
        changed = msgspec.structs.replace(response, status=status, head=msgspec.json.encode(head))
        self._kept.put(changed)
        return changed


def _seen(task: "asyncio.Task[None]") -> None:
    with suppress(asyncio.CancelledError):
        task.exception()
