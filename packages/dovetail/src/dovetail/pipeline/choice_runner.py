"""One choice of an answer: the engine's tokens in, batches of events out."""

import asyncio
import secrets
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from math import nan

import msgspec

from dovetail.engines.engine import Constraint, EngineRequest, TokenDelta, to_public_error
from dovetail.engines.sampling import UNKNOWN_LOGPROB
from dovetail.pipeline.generation import Generation
from dovetail.pipeline.guided_decoding import OutputPhase
from dovetail.pipeline.preparation import PreparedRequest
from dovetail.pipeline.registry import TokenModel
from dovetail.pipeline.sinks import EventSink
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

WARM_PRIORITY = -100  # the priority of work that nobody waits for


@dataclass(frozen=True)
class RequestObserver:
    """Who wants to know what happens to a request, for metrics, logs and headers."""

    on_prepared: Callable[[PreparedRequest], None] = lambda prepared: None
    on_note: Callable[[str], None] = lambda note: None
    on_inexact: Callable[[], None] = lambda: None
    on_migrated: Callable[[int], None] = lambda carried: None
    on_upstream_request: Callable[[int], None] = lambda turns: None
    on_replica_assigned: Callable[[int], None] = lambda replica: None
    on_choice_finished: Callable[[int, Usage, bool], None] = lambda choice, usage, cached_told: None


class ChoiceRunner:
    """One choice of an answer. It is what the engine speaks to."""

    _sink: EventSink

    def __init__(
        self,
        entry: TokenModel,
        prepared: PreparedRequest,
        new_call_id: Callable[[], str],
        limit: int,
        observer: RequestObserver,
        choice: int = 0,
    ) -> None:
        self._entry = entry
        self._prepared = prepared
        self._generation: Generation = entry.preparer.create_generation(prepared, new_call_id)
        asked = prepared.request.sampling.max_tokens
        self._limit = limit if asked is None else min(asked, limit)
        self._clamped = self._limit == limit
        self._observer = observer
        self._choice = choice
        self._cached_tokens: int | None = None
        self._exact = True
        self._migrations = 0
        self._migrated_at = 0  # how much had been said then
        self._attempts = 0  # how often the engine was asked
        self._started = False  # whether anything was told
        self._recorded = False
        self._engine_finish: FinishReason | None = None  # why the engine ended
        self._finish_reason: FinishReason | None = None  # why the answer ended
        model = entry.model
        # Where a thought cannot be closed for the model, it may go on.
        self._reasoning_budget = (
            prepared.request.thinking.budget if model.reasoning_end_ids else None
        )

    async def run(self, sink: EventSink) -> None:
        """Tells its events: the true input tokens first, the final count and the finish last.

        Raises before it has told any; later, what breaks is told.
        """
        self._sink = sink
        for note in self._entry.output_constraint(self._prepared).notes:
            self._observer.on_note(note)
        hold = asyncio.get_running_loop().call_later(
            self._entry.start_timeout_seconds, self._start_without_engine
        )
        try:
            await self._generate()
            end = self._finish_events()
            if self._entry.preparer.records_before_finish:
                await self._record()
            self._emit(end)
        except DovetailError as error:
            if not self._started:
                raise
            self._emit([self._usage(), to_public_error(error).to_failure()])
        except Exception as error:
            if not self._started:
                raise
            self._emit([self._usage(), InternalError(f"{type(error).__name__}").to_failure()])
            raise
        finally:
            hold.cancel()
            if self._started:
                self._observer.on_choice_finished(
                    self._choice, self._usage(), self._cached_tokens is not None
                )
            await self._record()
        self._warm_next_prompt()

    def push(self, delta: TokenDelta) -> bool:
        """More tokens. This runs for every one of them, in the call that brought it."""
        if delta.cached is not None and self._attempts == 1:  # to a second request, all was cached
            self._cached_tokens = min(delta.cached, len(self._prepared.prompt.ids))
        if not delta.exact and self._exact:
            self._exact = False
            self._observer.on_inexact()
        generation = self._generation
        events = self._decode_with_logprobs(delta) if delta.logprobs else generation.feed(delta.ids)
        if delta.finish is not None:
            self._engine_finish = delta.finish
        if not self._started:
            room = self._emit(events)
        else:
            room = not events or self._sink.write(self._choice, events)
        return (
            room
            and not generation.stopped
            and (self._reasoning_budget is None or not self._is_budget_spent())
        )

    def _decode_with_logprobs(self, delta: TokenDelta) -> list[Event]:
        """More tokens with their logprobs: they are kept, and shown to a client that asked."""
        lacking = len(delta.ids) - len(delta.logprobs)
        # Of the token that ended a turn, an engine may tell the id alone.
        if lacking == 0 or (lacking == 1 and delta.finish == "stop"):
            values = (one.logprob for one in delta.logprobs)
            self._generation.add_logprobs(nan if v == UNKNOWN_LOGPROB else v for v in values)
        events = self._generation.feed(delta.ids)
        if self._prepared.request.sampling.logprobs is not None:
            events.insert(0, Logprobs(delta.logprobs))
        return events

    async def drain(self) -> bool:
        """Waits for who listens. Whether the engine is to go on."""
        if self._generation.stopped or self._is_budget_spent():
            return False
        await self._sink.drain()
        return True

    def _emit(self, events: list[Event]) -> bool:
        if not self._started:
            self._started = True
            events.insert(0, self._usage())
        return self._sink.write(self._choice, events)

    def _start_without_engine(self) -> None:
        """The engine lets itself be waited for: the answer begins without it."""
        if not self._started:
            self._emit([])

    async def _generate(self) -> None:
        """As many generations as it takes, each going on where the last broke off.

        A thought that has spent its budget is closed for the model, if it then can say anything;
        else the answer ends in it. An answer whose replica died goes on on another one, or on the
        only one once that is back.
        """
        closing = list(self._entry.model.reasoning_end_ids)
        while not self._is_finished():
            self._attempts += 1
            try:
                await self._entry.engine.generate(
                    self._engine_request(), self, self._observer.on_replica_assigned
                )
            except EngineError as fault:
                if self._is_finished():
                    return  # all was said
                if self._generation.ids and len(self._generation.ids) >= self._limit:
                    self._engine_finish = "length"  # all was said but the end
                    return
                if not (self._can_migrate(fault) or await self._wait_for_recovery(fault)):
                    raise
                self._migrations += 1
                self._migrated_at = len(self._generation.ids)
                self._observer.on_migrated(self._migrated_at)
                continue
            if self._is_finished() or not self._is_budget_spent():
                return
            start = len(self._generation.ids)
            if self._limit - start <= len(closing):
                self._engine_finish = "length"  # there is no room for a word behind the closing
                return
            self.push(TokenDelta(ids=closing))
            self._generation.mark_forced(start)
            await self._sink.drain()

    def _is_finished(self) -> bool:
        return self._generation.stopped or self._engine_finish is not None

    def _can_migrate(self, fault: DovetailError) -> bool:
        """Whether another replica can go on with what was said so far."""
        said, served = self._generation.ids, self._entry
        lives = not isinstance(fault, EngineUnavailable | EngineTimeout)
        if self._migrations >= served.migration_limit or served.engine.available_count <= lives:
            return False
        if lives and said:
            return False  # it has room for others, and would do the same to them
        return not said or self._can_resume()

    async def _wait_for_recovery(self, fault: DovetailError) -> bool:
        """Whether the only replica can go on, once it is back. An answer not begun is not held.

        One that falls again before it said anything more has fallen over this very answer.
        """
        served, said = self._entry, len(self._generation.ids)
        if (
            not isinstance(fault, EngineUnavailable | EngineTimeout)
            or served.engine.available_count
        ):
            return False
        if self._migrations >= served.migration_limit or said <= self._migrated_at:
            return False
        return self._can_resume() and await served.engine.wait_available(served.recovery_wait)

    def _can_resume(self) -> bool:
        """In the middle of a form no grammar can be taken up again."""
        return (
            self._phase() is not None
            or self._entry.output_constraint(self._prepared).is_unconstrained
        )

    def _is_budget_spent(self) -> bool:
        """Whether a thought has used its budget up.

        What the model has begun to spell it may end: it could be the thought's own closing. Not
        without end, though: it may be at the beginning of one again and again.
        """
        budget, generation = self._reasoning_budget, self._generation
        if budget is None or not generation.in_reasoning or generation.reasoning_tokens < budget:
            return False
        grace = 2 * len(self._entry.model.reasoning_end_ids)
        return not generation.has_pending_text or generation.reasoning_tokens >= budget + grace

    def _engine_request(self) -> EngineRequest:
        request, said = self._prepared.request, self._generation.ids
        served, prompt = self._entry, self._prepared.prompt
        sampling = served.resolve_sampling(request.sampling)
        if sampling.seed is not None:
            sampling = msgspec.structs.replace(sampling, seed=sampling.seed + self._choice)
        return EngineRequest(
            id=self._generation.entry_id,
            prompt=prompt.ids + said if said else prompt.ids,
            max_tokens=self._limit - len(said),
            sampling=sampling,
            stop_ids=served.model.stop_ids,
            constraint=self._constraint(),
            session=_session_key(self._prepared),
            priority=request.hints.priority or 0,
            cache_salt=_cache_salt(request),
            expected_tokens=request.hints.osl,
        )

    def _constraint(self) -> Constraint | None:
        """What the rest must look like. Behind words or calls no grammar can be taken up again."""
        place = self._phase()
        return (
            None
            if place is None
            else self._entry.output_constraint(self._prepared, place).constraint
        )

    def _phase(self) -> OutputPhase | None:
        """How far the answer is; None where it is behind its thought."""
        generation = self._generation
        if not generation.ids:
            return "start"
        model = self._entry.model
        closing = model.tokenizer.decode(model.reasoning_end_ids)
        if not generation.is_only_reasoning(closing):
            return None
        return "thought" if generation.in_reasoning else "answer"

    def _usage(self) -> Usage:
        spoken = self._generation.ids
        return Usage(
            input_tokens=len(self._prepared.prompt.ids),
            output_tokens=len(spoken) + (self._generation.stopped and bool(spoken)),
            cached_tokens=self._cached_tokens or 0,
            reasoning_tokens=self._generation.reasoning_tokens,
        )

    def _finish_events(self) -> list[Event]:
        finished = self._engine_finish
        if finished == "length" and self._clamped:
            finished = "context_window"
        *events, finish = self._generation.finish(finished)
        self._finish_reason = finish.reason if isinstance(finish, Finish) else None
        return [*events, self._usage(), finish]

    async def _record(self) -> None:
        """Also what was said before a client hung up: it may come back with that."""
        if self._exact and self._generation.ids and not self._recorded:
            self._recorded = True
            await self._entry.preparer.record(self._prepared, self._generation)

    def _warm_next_prompt(self) -> None:
        """Has the next prompt read while the user is still at it, if the client wishes so.

        Behind a call there is nothing to gain: the next prompt goes on from this one.
        """
        if self._prepared.request.hints.speculative_prefill and self._finish_reason == "stop":
            self._entry.engine.warm(_session_key(self._prepared), self._next_warm_request)

    async def _next_warm_request(self) -> EngineRequest | None:
        ids = await self._entry.preparer.predict_next_prompt(self._prepared, self._generation)
        name, session = self._generation.entry_id, _session_key(self._prepared)
        return _warm_request(self._entry, self._prepared.request, ids, (name, session))


def warm_prefix(entry: TokenModel, request: Request) -> None:
    """Has the engine read what prompts begin with that go on from this request."""
    session = _named_session_key(request.identity)

    async def opening() -> EngineRequest | None:
        ids = await entry.preparer.shared_prompt_prefix(request)
        return _warm_request(entry, request, ids, (secrets.token_urlsafe(12), session))

    entry.engine.warm(session, opening)


def _warm_request(
    entry: TokenModel,
    request: Request,
    ids: "array[int] | None",
    id_and_session: tuple[str, str | None],
) -> EngineRequest | None:
    """A prompt that the engine is to read and not to answer, if it has room for it."""
    if not ids or len(ids) >= entry.context_length:
        return None
    name, session = id_and_session
    return EngineRequest(
        id=f"{name}-warm",
        prompt=ids,
        max_tokens=1,
        sampling=Sampling(temperature=0.0),
        stop_ids=entry.model.stop_ids,
        session=session,
        priority=WARM_PRIORITY,
        cache_salt=_cache_salt(request),
        expected_tokens=1,
    )


def _session_key(prepared: PreparedRequest) -> str | None:
    """What a conversation is told by: its session, else how it began. Never another tenant's."""
    identity, begun = prepared.request.identity, prepared.prompt.history.digests
    if identity.session is None:
        return (prepared.prompt.head.whole + begun[0]).hex() if begun else None
    return _named_session_key(identity)


def _named_session_key(identity: Identity) -> str | None:
    """The session that the client named, if it did, apart from those of other tenants."""
    session, tenant = identity.session, identity.tenant
    return _scope_to_tenant(tenant, session) if tenant and session is not None else session


def _cache_salt(request: Request) -> str | None:
    """Keeps the engine's cache of one tenant from telling another what was said."""
    tenant, salt = request.identity.tenant, request.hints.cache_salt
    return _scope_to_tenant(tenant, salt or "") if tenant else salt


def _scope_to_tenant(tenant: str, name: str) -> str:
    """A name that no other tenant can make, whatever it calls its own."""
    return f"{len(tenant)}:{tenant}/{name}"
