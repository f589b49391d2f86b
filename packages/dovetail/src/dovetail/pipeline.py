"""The one way from a request to the events of its answer.

Request ─prepare─▶ Prompt(ids) ─engine─▶ ids ─detokenize, parse─▶ events ─▶ (encoded further out)
                                              └─ record: the finished turn goes into the ledger
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.generation import Generation
from dovetail.preparation import Prepared
from dovetail.service import Served
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    Event,
    FinishReason,
    InternalError,
    Logprobs,
    Request,
    Usage,
)

HOLD = 1.0  # seconds that an answer's beginning waits for the engine: errors can still be a status
Answer = AsyncGenerator[tuple[int, list[Event]]]


@dataclass(frozen=True)
class Watch:
    """Who wants to know what happens to a request, for metrics, logs and headers."""

    prepared: Callable[[Prepared], None] = lambda prepared: None
    inexact: Callable[[], None] = lambda: None


async def answer(
    served: Served, request: Request, new_call_id: Callable[[], str], watch: Watch | None = None
) -> Answer:
    """The events of an answer, by choice. Raises before the first ones, is a `Failure` after."""
    prepared = await served.preparer.prepare(request)
    watch = watch or Watch()
    watch.prepared(prepared)
    limit = room(served, prepared)
    choices = max(1, request.sampling.n)
    speakers = [_Speaker(served, prepared, new_call_id, limit, watch) for _ in range(choices)]
    if choices == 1:
        async with aclosing(speakers[0].speak()) as events:
            async for batch in events:
                yield 0, batch
        return
    async with aclosing(_merged([speaker.speak() for speaker in speakers])) as batches:
        async for choice, batch in batches:
            yield choice, batch


def room(served: Served, prepared: Prepared) -> int:
    """How many tokens the answer may have. Raises where the prompt leaves none."""
    length, window = len(prepared.prompt.ids), served.context_length
    if length >= window:
        raise ContextOverflow(
            f"prompt is too long: {length} tokens > {window - 1} maximum", param="messages"
        )
    return window - length


class _Speaker:
    """One choice of an answer."""

    def __init__(
        self,
        served: Served,
        prepared: Prepared,
        new_call_id: Callable[[], str],
        limit: int,
        watch: Watch,
    ) -> None:
        self._served = served
        self._prepared = prepared
        self._generation: Generation = served.preparer.generation(prepared, new_call_id)
        asked = prepared.request.sampling.max_tokens
        self._limit = limit if asked is None else min(asked, limit)
        self._clamped = self._limit == limit
        self._watch = watch
        self._cached = 0
        self._exact = True

    async def speak(self) -> AsyncGenerator[list[Event]]:
        """Batches of events: the true input tokens first, the final count and the finish last."""
        begun = False
        finished: FinishReason | None = None
        try:
            async with aclosing(self._deltas()) as deltas, aclosing(_held(deltas, HOLD)) as held:
                async for delta in held:
                    events = self._hear(delta) if delta is not None else []
                    if not begun:
                        events.insert(0, self._usage())
                    begun = True
                    if events:
                        yield events
                    if delta is not None and delta.finish is not None:
                        finished = delta.finish
            yield self._end(finished)
        except DovetailError as error:
            if not begun:
                raise
            yield [self._usage(), error.failure()]
        except Exception as error:
            if not begun:
                raise
            yield [self._usage(), InternalError(f"{type(error).__name__}").failure()]
            raise
        finally:
            await self._record()

    async def _deltas(self) -> AsyncGenerator[TokenDelta]:
        """The engine's deltas; where a thought has spent its budget, it is closed for the model."""
        budget = self._prepared.request.thinking.budget
        closing = self._served.thought_closing
        while True:
            over = False
            async with aclosing(self._served.engine.generate(self._engine_request())) as deltas:
                async for delta in deltas:
                    yield delta
                    if self._generation.stopped:
                        return
                    over = bool(
                        budget is not None
                        and closing
                        and self._generation.thinking
                        and len(self._generation.ids) >= budget
                    )
                    if over and delta.finish is None:
                        break
                else:
                    return
            yield TokenDelta(ids=closing)

    def _engine_request(self) -> EngineRequest:
        request, said = self._prepared.request, self._generation.ids
        served, prompt = self._served, self._prepared.prompt
        return EngineRequest(
            id=self._generation.entry_id,
            prompt=prompt.ids + said if said else prompt.ids,
            max_tokens=self._limit - len(said),
            sampling=served.sampling(request.sampling),
            stop_ids=served.model.stop_ids,
            constraint=None if said else served.constraint(self._prepared),
            session=request.identity.session,
            priority=request.hints.priority or 0,
            cache_salt=request.hints.cache_salt,
        )

    def _hear(self, delta: TokenDelta) -> list[Event]:
        self._cached = delta.cached if delta.cached is not None else self._cached
        if not delta.exact and self._exact:
            self._exact = False
            self._watch.inexact()
        events = self._generation.feed(delta.ids)
        return [Logprobs(delta.logprobs), *events] if delta.logprobs else events

    def _usage(self) -> Usage:
        spoken = self._generation.ids
        return Usage(
            input_tokens=len(self._prepared.prompt.ids),
            output_tokens=len(spoken) + (self._generation.stopped and bool(spoken)),
            cached_tokens=self._cached,
            reasoning_tokens=self._generation.thought_tokens,
        )

    def _end(self, finished: FinishReason | None) -> list[Event]:
        if finished == "length" and self._clamped:
            finished = "context_window"
        *events, finish = self._generation.finish(finished)
        return [*events, self._usage(), finish]

    async def _record(self) -> None:
        """Also what was said before a client hung up: it may come back with that."""
        if self._exact and self._generation.ids:
            await self._served.preparer.record(self._prepared, self._generation)


async def _held(
    deltas: AsyncGenerator[TokenDelta], seconds: float
) -> AsyncGenerator[TokenDelta | None]:
    """The deltas; None first, if the first one lets itself be waited for."""
    first = asyncio.ensure_future(anext(deltas, None))
    try:
        done, _ = await asyncio.wait({first}, timeout=seconds)
        if not done:
            yield None
        delta = await first
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    if delta is None:
        return
    yield delta
    async for delta in deltas:
        yield delta


async def _merged(streams: list[AsyncGenerator[list[Event]]]) -> Answer:
    """Several streams as one, each batch with its place."""
    queue: asyncio.Queue[tuple[int, list[Event] | BaseException | None]] = asyncio.Queue(64)

    async def pump(place: int, stream: AsyncGenerator[list[Event]]) -> None:
        try:
            async for batch in stream:
                await queue.put((place, batch))
            await queue.put((place, None))
        except Exception as error:
            await queue.put((place, error))

    pumps = [asyncio.create_task(pump(at, stream)) for at, stream in enumerate(streams)]
    try:
        left = len(pumps)
        while left:
            place, batch = await queue.get()
            if isinstance(batch, BaseException):
                raise batch
            if batch is None:
                left -= 1
            else:
                yield place, batch
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def count_tokens(served: Served, request: Request) -> int:
    """The exact number of input tokens that this request would have."""
    return await served.preparer.count(request)
