"""Responses that are worked on whether their client stays or not.

Each runs as a stream like any other, into a list of frames. Who wants to see it follows the list.
"""

import asyncio
import copy
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from dovetail.http.accounts.account import Account
from dovetail.http.answering.lifeline import Lifeline
from dovetail.http.answering.stream import HEADERS, SSE
from dovetail.http.asgi import Message
from dovetail.http.errors import Disconnected, status_of, told
from dovetail.http.exchange import Exchange, end_of
from dovetail.http.stateful.keeping import Keeping
from dovetail.kept import Kept, KeptResponse
from dovetail.metrics import Metrics
from dovetail_model import DovetailError, InternalError, InvalidRequest, RateLimited
from dovetail_protocols import RESPONSES, ResponsesEncoder, split_response

MOST_RUNNING = 256  # of all tenants
MOST_OF_ONE = 64  # of one tenant
MOST_BYTES = 256 << 20  # of frames of all that run: where there are more, none is begun
RETRY_AFTER = 5.0

_HEARTBEAT = 10.0  # seconds between two signs of life of a run
_WATCH = 1.0  # seconds between two looks whether another process has called a run off
_SILENT = 60.0  # seconds after which a run without a sign of life is taken for dead
_FOLLOWED = 64  # runs that are over and can still be followed
_FOLLOWED_BYTES = 32 << 20
_PIECE = 1 << 16  # bytes
_NUMBER = re.compile(rb'"sequence_number":(\d+)')
_STOPPED = "The server stopped before the response was complete."

Work = Callable[[Exchange], Awaitable[None]]
Key = tuple[str, str]


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
        while end < len(self.all) and size + len(self.all[end]) <= _PIECE:
            size += len(self.all[end])
            end += 1
        return end

    async def more(self) -> None:
        """Returns when there are more of them, or the end."""
        await self._more.wait()

    def _wake(self) -> None:
        waiting, self._more = self._more, asyncio.Event()
        waiting.set()


class Run:
    """One response in the making. It is the client that the answer is sent to."""

    __slots__ = ("_encoder", "_keeping", "cancelled", "frames", "task")

    def __init__(self, keeping: Keeping, encoder: ResponsesEncoder) -> None:
        self._keeping = keeping
        self._encoder = encoder
        self.frames = Frames()
        self.cancelled = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def receive(self) -> Message:
        """It never says anything, unless the response is called off."""
        await self.cancelled.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.frames.add(message.get("body") or b"")

    async def stop(self) -> None:
        """Calls it off, and returns when it is over."""
        self.cancelled.set()
        if self.task is not None:
            await asyncio.wait({self.task})

    async def call_off(self) -> None:
        self.frames.add(self._encoder.cancel())
        self.frames.add(await self._keeping.late())

    async def fail(self, error: DovetailError) -> None:
        self.frames.add(self._encoder.encode([error.failure()]))
        self.frames.add(await self._keeping.late())

    def refresh(self) -> KeptResponse | None:
        """Keeps the response as it is now, with a sign of life. None: it is over."""
        known = self._keeping.response
        if known is None or not known.running:
            return None
        encoder = self._encoder
        now = encoder.in_progress() if self.frames.all else encoder.queued()
        return self._keeping.keep(now, seen=time.time())

    async def settled(self) -> None:
        await self._keeping.settled()

    def forget(self) -> None:
        """It was deleted: what becomes of it is not kept."""
        self._keeping.forget()


class Background:
    """Starts runs, shows them, calls them off."""

    def __init__(self, kept: Kept, metrics: Metrics) -> None:
        self._kept = kept
        self._metrics = metrics
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
        self._metrics.background(+1)
        account.detached = True
        run.task = asyncio.create_task(self._work(key, run, account, work(apart)))
        run.task.add_done_callback(_seen)
        if self._kept.siblings:
            watcher = asyncio.create_task(self._watch(key, run))
            run.task.add_done_callback(lambda _: watcher.cancel())
        return run.frames, queued

    async def follow(self, exchange: Exchange, id: str, after: int) -> None:
        """The stream of a response, from behind a frame on. InvalidRequest where it is gone."""
        key = (exchange.tenant, id)
        run = self._running.get(key)
        frames = run.frames if run is not None else self._over.get(key)
        if frames is None:
            raise InvalidRequest(
                f"The stream of '{id}' is not at hand: fetch the response without it.",
                param="stream",
            )
        await self.show(exchange, frames, after)

    async def show(self, exchange: Exchange, frames: Frames, after: int = -1) -> None:
        """The frames to whoever stays to see them.

        No more at a time than is read: there may be many who follow, and they share the frames.
        """
        await exchange.begin(200, SSE, HEADERS)
        async with Lifeline(exchange.receive) as lifeline:
            at = 0
            while at < len(frames.all) or not frames.over:
                if at == len(frames.all):
                    await frames.more()
                    continue
                end = frames.piece(at)
                body = b"".join(_behind(b"".join(frames.all[at:end]), after))
                at = end
                for start in range(0, len(body), _PIECE):
                    part = body[start : start + _PIECE]
                    await exchange.send(
                        {"type": "http.response.body", "body": part, "more_body": True}
                    )
            lifeline.release()
        await exchange.send(end_of())

    async def current(self, response: KeptResponse) -> KeptResponse:
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
        if self._kept.siblings and time.time() - response.seen < _SILENT:
            return response
        error = {"code": "server_error", "message": _STOPPED}
        return self._rewrite(response, "failed", error)

    async def cancel(self, response: KeptResponse) -> KeptResponse:
        """Calls a run off, here or in another process. Gives what is left of it."""
        run = self._running.get((response.tenant, response.id))
        if run is None:
            return self._rewrite(response, "cancelled", None)
        await run.stop()
        return await self._kept.get(response.tenant, response.id) or response

    async def abandon(self, tenant: str, id: str) -> None:
        """A response that is deleted is not worked on."""
        run = self._running.get((tenant, id))
        if run is not None:
            run.forget()
            await run.stop()
        self._over.pop((tenant, id), None)

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
        except Disconnected:
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
            self._metrics.background(-1)
            account.close()

    async def _watch(self, key: Key, run: Run) -> None:
        """Hears from other processes that it is not wanted any more, and tells them it lives."""
        told = time.time()
        await run.settled()
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

    def _rewrite(self, response: KeptResponse, status: str, error: object) -> KeptResponse:
        """A response whose run is not here, as it stands from now on."""
        head, _ = split_response(response.head)
        head |= {
            "status": msgspec.Raw(msgspec.json.encode(status)),
            "error": msgspec.Raw(msgspec.json.encode(error)),
        }
        changed = msgspec.structs.replace(response, status=status, head=msgspec.json.encode(head))
        self._kept.keep(changed)
        return changed


def _behind(frames: bytes, after: int) -> list[bytes]:
    """The frames with a higher number. They are in order, so mostly it is all or none."""
    first = _NUMBER.search(frames)
    if after < 0 or (first is not None and int(first[1]) > after):
        return [frames]
    found: list[bytes] = []
    for frame in frames.split(b"\n\n"):
        number = _NUMBER.search(frame)
        if number is not None and int(number[1]) > after:
            found.append(frame + b"\n\n")
    return found


def _seen(task: "asyncio.Task[None]") -> None:
    with suppress(asyncio.CancelledError):
        task.exception()
