"""One choice of an answer: the engine's tokens in, batches of events out."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from dovetail.engines.engine import Constraint, EngineRequest, TokenDelta
from dovetail.generation import Generation
from dovetail.guidance import Place
from dovetail.preparation import Prepared
from dovetail.service import Served
from dovetail.streams import held
from dovetail_model import (
    DovetailError,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Event,
    Finish,
    FinishReason,
    InternalError,
    Logprobs,
    Request,
    Sampling,
    Usage,
)

LEAST_URGENT = -100  # the priority of work that nobody waits for
HOLD = 1.0  # seconds that an answer's beginning waits for the engine: errors can still be a status


@dataclass(frozen=True)
class Watch:
    """Who wants to know what happens to a request, for metrics, logs and headers."""

    prepared: Callable[[Prepared], None] = lambda prepared: None
    noted: Callable[[str], None] = lambda note: None
    inexact: Callable[[], None] = lambda: None
    migrated: Callable[[], None] = lambda: None
    relayed: Callable[[int], None] = lambda turns: None


class Speaker:
    """One choice of an answer."""

    def __init__(
        self,
        served: Served,
        prepared: Prepared,
        new_call_id: Callable[[], str],
        limit: int,
        watch: Watch,
        choice: int = 0,
    ) -> None:
        self._served = served
        self._prepared = prepared
        self._generation: Generation = served.preparer.generation(prepared, new_call_id)
        asked = prepared.request.sampling.max_tokens
        self._limit = limit if asked is None else min(asked, limit)
        self._clamped = self._limit == limit
        self._watch = watch
        self._choice = choice
        self._cached: int | None = None
        self._exact = True
        self._moves = 0
        self._moved_at = 0  # how much had been said then
        self._asked = 0  # how often the engine was asked
        self._reason: FinishReason | None = None  # why the answer ended

    async def speak(self) -> AsyncGenerator[list[Event]]:
        """Batches of events: the true input tokens first, the final count and the finish last."""
        begun = False
        for note in self._served.demand(self._prepared).notes:
            self._watch.noted(note)
        finished: FinishReason | None = None
        try:
            async with aclosing(self._deltas()) as deltas, aclosing(held(deltas, HOLD)) as spoken:
                async for delta in spoken:
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
        self._warm()

    async def _deltas(self) -> AsyncGenerator[TokenDelta]:
        """The deltas of as many generations as it takes, each going on where the last broke off.

        A thought that has spent its budget is closed for the model. An answer whose replica died
        goes on on another one, or on the only one once that is back.
        """
        closing = list(self._served.model.thought_closing)
        while True:
            self._asked += 1
            try:
                async with aclosing(self._served.engine.generate(self._engine_request())) as deltas:
                    async for delta in deltas:
                        yield delta
                        if self._generation.stopped or delta.finish is not None:
                            return
                        if closing and self._has_thought_enough():
                            break
                    else:
                        return
            except EngineError as fault:
                if self._generation.ids and len(self._generation.ids) >= self._limit:
                    yield TokenDelta(ids=[], finish="length")  # all was said but the end
                    return
                if not (self._can_move(fault) or await self._comes_back(fault)):
                    raise
                self._moves += 1
                self._moved_at = len(self._generation.ids)
                self._watch.migrated()
                continue
            room = self._limit - len(self._generation.ids)
            if room <= len(closing):
                yield TokenDelta(ids=closing[:room], finish="length")
                return
            yield TokenDelta(ids=closing)

    def _can_move(self, fault: DovetailError) -> bool:
        """Whether another replica can go on with what was said so far."""
        said, served = self._generation.ids, self._served
        lives = not isinstance(fault, EngineUnavailable | EngineTimeout)
        if self._moves >= served.migration_limit or served.engine.up <= lives:
            return False
        if lives and said:
            return False  # it has room for others, and would do the same to them
        return not said or self._can_be_taken_up()

    async def _comes_back(self, fault: DovetailError) -> bool:
        """Whether the only replica can go on, once it is back. An answer not begun is not held.

        One that falls again before it said anything more has fallen over this very answer.
        """
        served, said = self._served, len(self._generation.ids)
        if not isinstance(fault, EngineUnavailable | EngineTimeout) or served.engine.up:
            return False
        if self._moves >= served.migration_limit or said <= self._moved_at:
            return False
        return self._can_be_taken_up() and await served.engine.recovered(served.recovery_wait)

    def _can_be_taken_up(self) -> bool:
        """In the middle of a form no grammar can be taken up again."""
        return self._place() is not None or self._served.demand(self._prepared).free

    def _has_thought_enough(self) -> bool:
        budget, generation = self._prepared.request.thinking.budget, self._generation
        return budget is not None and generation.thinking and generation.thought_tokens >= budget

    def _engine_request(self) -> EngineRequest:
        request, said = self._prepared.request, self._generation.ids
        served, prompt = self._served, self._prepared.prompt
        sampling = served.sampling(request.sampling)
        if sampling.seed is not None:
            sampling = msgspec.structs.replace(sampling, seed=sampling.seed + self._choice)
        return EngineRequest(
            id=self._generation.entry_id,
            prompt=prompt.ids + said if said else prompt.ids,
            max_tokens=self._limit - len(said),
            sampling=sampling,
            stop_ids=served.model.stop_ids,
            constraint=self._constraint(),
            session=_session(self._prepared),
            priority=request.hints.priority or 0,
            cache_salt=_salt(request),
            expected_tokens=request.hints.osl,
        )

    def _constraint(self) -> Constraint | None:
        """What the rest must look like. Behind words or calls no grammar can be taken up again."""
        place = self._place()
        return None if place is None else self._served.demand(self._prepared, place).constraint

    def _place(self) -> Place | None:
        """How far the answer is; None where it is behind its thought."""
        generation = self._generation
        if not generation.ids:
            return "start"
        model = self._served.model
        closing = model.tokenizer.decode(model.thought_closing)
        if not generation.only_thought(closing):
            return None
        return "thought" if generation.thinking else "answer"

    def _hear(self, delta: TokenDelta) -> list[Event]:
        if self._asked == 1 and delta.cached is not None:  # to a second request, all was cached
            self._cached = min(delta.cached, len(self._prepared.prompt.ids))
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
            cached_tokens=self._cached or 0,
            reasoning_tokens=self._generation.thought_tokens,
        )

    def _end(self, finished: FinishReason | None) -> list[Event]:
        if finished == "length" and self._clamped:
            finished = "context_window"
        *events, finish = self._generation.finish(finished)
        self._reason = finish.reason if isinstance(finish, Finish) else None
        return [*events, self._usage(), finish]

    async def _record(self) -> None:
        """Also what was said before a client hung up: it may come back with that."""
        if self._exact and self._generation.ids:
            await self._served.preparer.record(self._prepared, self._generation)

    def _warm(self) -> None:
        """Has the next prompt read while the user is still at it, if the client wishes so.

        Behind a call there is nothing to gain: the next prompt goes on from this one.
        """
        if self._prepared.request.hints.speculative_prefill and self._reason == "stop":
            self._served.engine.warm(_session(self._prepared), self._next_request)

    async def _next_request(self) -> EngineRequest | None:
        ids = await self._served.preparer.expected(self._prepared, self._generation)
        if ids is None or len(ids) >= self._served.context_length:
            return None
        request = self._engine_request()
        return msgspec.structs.replace(
            request,
            id=f"{request.id}-warm",
            prompt=ids,
            max_tokens=1,
            priority=LEAST_URGENT,
            constraint=None,
            sampling=Sampling(temperature=0.0),
            expected_tokens=1,
        )


def _session(prepared: Prepared) -> str | None:
    """What a conversation is told by: its session, else how it began. Never another tenant's."""
    identity, begun = prepared.request.identity, prepared.prompt.recalled.digests
    if identity.session is None:
        return (prepared.prompt.head.whole + begun[0]).hex() if begun else None
    return _of_tenant(identity.tenant, identity.session) if identity.tenant else identity.session


def _salt(request: Request) -> str | None:
    """Keeps the engine's cache of one tenant from telling another what was said."""
    tenant, salt = request.identity.tenant, request.hints.cache_salt
    return _of_tenant(tenant, salt or "") if tenant else salt


def _of_tenant(tenant: str, name: str) -> str:
    """A name that no other tenant can make, whatever it calls its own."""
    return f"{len(tenant)}:{tenant}/{name}"
