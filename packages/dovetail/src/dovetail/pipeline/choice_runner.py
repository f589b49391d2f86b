"""One choice of an answer: the engine's tokens in, batches of events out."""

import asyncio
import secrets
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from math import nan

import msgspec

from dovetail.engines.engine import Constraint, EngineRequest, TokenDelta
from dovetail.engines.outward import to_public_error
from dovetail.engines.sampling import UNKNOWN_LOGPROB
from dovetail.pipeline.generation import Generation
from dovetail.pipeline.guided_decoding import Place
from dovetail.pipeline.preparation import Prepared
from dovetail.pipeline.registry import Served
from dovetail.pipeline.sinks import Audience
from dovetail_model import (
    DovetailError,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Event,
    Finish,
    FinishReason,
    Identity,
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
    migrated: Callable[[int], None] = lambda carried: None
    relayed: Callable[[int], None] = lambda turns: None
    taken: Callable[[int], None] = lambda replica: None
    said: Callable[[int, Usage, bool], None] = lambda choice, usage, cached_told: None


class Speaker:
    """One choice of an answer. It is what the engine speaks to."""

    _audience: Audience

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
        self._begun = False  # whether anything was told
        self._recorded = False
        self._finished: FinishReason | None = None  # why the engine ended
        self._reason: FinishReason | None = None  # why the answer ended
        model = served.model
        # Where a thought cannot be closed for the model, it may go on.
        self._budget = prepared.request.thinking.budget if model.reasoning_end_ids else None

    async def speak(self, audience: Audience) -> None:
        """Tells its events: the true input tokens first, the final count and the finish last.

        Raises before it has told any; later, what breaks is told.
        """
        self._audience = audience
        for note in self._served.demand(self._prepared).notes:
            self._watch.noted(note)
        hold = asyncio.get_running_loop().call_later(HOLD, self._begin)
        try:
            await self._generate()
            end = self._end()
            if self._served.preparer.records_first:
                await self._record()
            self._tell(end)
        except DovetailError as error:
            if not self._begun:
                raise
            self._tell([self._usage(), to_public_error(error).failure()])
        except Exception as error:
            if not self._begun:
                raise
            self._tell([self._usage(), InternalError(f"{type(error).__name__}").failure()])
            raise
        finally:
            hold.cancel()
            if self._begun:
                self._watch.said(self._choice, self._usage(), self._cached is not None)
            await self._record()
        self._warm()

    def hear(self, delta: TokenDelta) -> bool:
        """More tokens. This runs for every one of them, in the call that brought it."""
        if delta.cached is not None and self._asked == 1:  # to a second request, all was cached
            self._cached = min(delta.cached, len(self._prepared.prompt.ids))
        if not delta.exact and self._exact:
            self._exact = False
            self._watch.inexact()
        generation = self._generation
        events = self._probable(delta) if delta.logprobs else generation.feed(delta.ids)
        if delta.finish is not None:
            self._finished = delta.finish
        if not self._begun:
            room = self._tell(events)
        else:
            room = not events or self._audience.hear(self._choice, events)
        return room and not generation.stopped and (self._budget is None or not self._is_spent())

    def _probable(self, delta: TokenDelta) -> list[Event]:
        """More tokens with their logprobs: they are kept, and shown to a client that asked."""
        lacking = len(delta.ids) - len(delta.logprobs)
        # Of the token that ended a turn, an engine may tell the id alone.
        if lacking == 0 or (lacking == 1 and delta.finish == "stop"):
            values = (one.logprob for one in delta.logprobs)
            self._generation.probable(nan if v == UNKNOWN_LOGPROB else v for v in values)
        events = self._generation.feed(delta.ids)
        if self._prepared.request.sampling.logprobs is not None:
            events.insert(0, Logprobs(delta.logprobs))
        return events

    async def wait(self) -> bool:
        """Waits for who listens. Whether the engine is to go on."""
        if self._generation.stopped or self._is_spent():
            return False
        await self._audience.room()
        return True

    def _tell(self, events: list[Event]) -> bool:
        if not self._begun:
            self._begun = True
            events.insert(0, self._usage())
        return self._audience.hear(self._choice, events)

    def _begin(self) -> None:
        """The engine lets itself be waited for: the answer begins without it."""
        if not self._begun:
            self._tell([])

    async def _generate(self) -> None:
        """As many generations as it takes, each going on where the last broke off.

        A thought that has spent its budget is closed for the model, if it then can say anything;
        else the answer ends in it. An answer whose replica died goes on on another one, or on the
        only one once that is back.
        """
        closing = list(self._served.model.reasoning_end_ids)
        while not self._is_over():
            self._asked += 1
            try:
                await self._served.engine.generate(self._engine_request(), self, self._watch.taken)
            except EngineError as fault:
                if self._is_over():
                    return  # all was said
                if self._generation.ids and len(self._generation.ids) >= self._limit:
                    self._finished = "length"  # all was said but the end
                    return
                if not (self._can_move(fault) or await self._comes_back(fault)):
                    raise
                self._moves += 1
                self._moved_at = len(self._generation.ids)
                self._watch.migrated(self._moved_at)
                continue
            if self._is_over() or not self._is_spent():
                return
            start = len(self._generation.ids)
            if self._limit - start <= len(closing):
                self._finished = "length"  # there is no room for a word behind the closing
                return
            self.hear(TokenDelta(ids=closing))
            self._generation.forced(start)
            await self._audience.room()

    def _is_over(self) -> bool:
        return self._generation.stopped or self._finished is not None

    def _can_move(self, fault: DovetailError) -> bool:
        """Whether another replica can go on with what was said so far."""
        said, served = self._generation.ids, self._served
        lives = not isinstance(fault, EngineUnavailable | EngineTimeout)
        if self._moves >= served.migration_limit or served.engine.available_count <= lives:
            return False
        if lives and said:
            return False  # it has room for others, and would do the same to them
        return not said or self._can_be_taken_up()

    async def _comes_back(self, fault: DovetailError) -> bool:
        """Whether the only replica can go on, once it is back. An answer not begun is not held.

        One that falls again before it said anything more has fallen over this very answer.
        """
        served, said = self._served, len(self._generation.ids)
        if not isinstance(fault, EngineUnavailable | EngineTimeout) or served.engine.available_count:
            return False
        if self._moves >= served.migration_limit or said <= self._moved_at:
            return False
        return self._can_be_taken_up() and await served.engine.wait_available(served.recovery_wait)

    def _can_be_taken_up(self) -> bool:
        """In the middle of a form no grammar can be taken up again."""
        return self._place() is not None or self._served.demand(self._prepared).free

    def _is_spent(self) -> bool:
        """Whether a thought has used its budget up.

        What the model has begun to spell it may end: it could be the thought's own closing. Not
        without end, though: it may be at the beginning of one again and again.
        """
        budget, generation = self._budget, self._generation
        if budget is None or not generation.thinking or generation.thought_tokens < budget:
            return False
        grace = 2 * len(self._served.model.reasoning_end_ids)
        return not generation.undecided or generation.thought_tokens >= budget + grace

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
        closing = model.tokenizer.decode(model.reasoning_end_ids)
        if not generation.only_thought(closing):
            return None
        return "thought" if generation.thinking else "answer"

    def _usage(self) -> Usage:
        spoken = self._generation.ids
        return Usage(
            input_tokens=len(self._prepared.prompt.ids),
            output_tokens=len(spoken) + (self._generation.stopped and bool(spoken)),
            cached_tokens=self._cached or 0,
            reasoning_tokens=self._generation.thought_tokens,
        )

    def _end(self) -> list[Event]:
        finished = self._finished
        if finished == "length" and self._clamped:
            finished = "context_window"
        *events, finish = self._generation.finish(finished)
        self._reason = finish.reason if isinstance(finish, Finish) else None
        return [*events, self._usage(), finish]

    async def _record(self) -> None:
        """Also what was said before a client hung up: it may come back with that."""
        if self._exact and self._generation.ids and not self._recorded:
            self._recorded = True
            await self._served.preparer.record(self._prepared, self._generation)

    def _warm(self) -> None:
        """Has the next prompt read while the user is still at it, if the client wishes so.

        Behind a call there is nothing to gain: the next prompt goes on from this one.
        """
        if self._prepared.request.hints.speculative_prefill and self._reason == "stop":
            self._served.engine.warm(_session(self._prepared), self._next_request)

    async def _next_request(self) -> EngineRequest | None:
        ids = await self._served.preparer.expected(self._prepared, self._generation)
        name, session = self._generation.entry_id, _session(self._prepared)
        return _only_read(self._served, self._prepared.request, ids, (name, session))


def read_ahead(served: Served, request: Request) -> None:
    """Has the engine read what prompts begin with that go on from this request."""
    session = _own_session(request.identity)

    async def opening() -> EngineRequest | None:
        ids = await served.preparer.opening(request)
        return _only_read(served, request, ids, (secrets.token_urlsafe(12), session))

    served.engine.warm(session, opening)


def _only_read(
    served: Served, request: Request, ids: "array[int] | None", told: tuple[str, str | None]
) -> EngineRequest | None:
    """A prompt that the engine is to read and not to answer, if it has room for it."""
    if not ids or len(ids) >= served.context_length:
        return None
    name, session = told
    return EngineRequest(
        id=f"{name}-warm",
        prompt=ids,
        max_tokens=1,
        sampling=Sampling(temperature=0.0),
        stop_ids=served.model.stop_ids,
        session=session,
        priority=LEAST_URGENT,
        cache_salt=_salt(request),
        expected_tokens=1,
    )


def _session(prepared: Prepared) -> str | None:
    """What a conversation is told by: its session, else how it began. Never another tenant's."""
    identity, begun = prepared.request.identity, prepared.prompt.history.digests
    if identity.session is None:
        return (prepared.prompt.head.whole + begun[0]).hex() if begun else None
    return _own_session(identity)


def _own_session(identity: Identity) -> str | None:
    """The session that the client named, if it did, apart from those of other tenants."""
    session, tenant = identity.session, identity.tenant
    return _of_tenant(tenant, session) if tenant and session is not None else session


def _salt(request: Request) -> str | None:
    """Keeps the engine's cache of one tenant from telling another what was said."""
    tenant, salt = request.identity.tenant, request.hints.cache_salt
    return _of_tenant(tenant, salt or "") if tenant else salt


def _of_tenant(tenant: str, name: str) -> str:
    """A name that no other tenant can make, whatever it calls its own."""
    return f"{len(tenant)}:{tenant}/{name}"
