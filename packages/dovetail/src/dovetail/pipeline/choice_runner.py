"""Run one choice of a response: stream tokens from the engine and emit batches of events."""

import asyncio
from collections.abc import Callable
from math import nan

import msgspec

from dovetail.engines.engine import Constraint, EngineRequest, TokenDelta, to_public_error
from dovetail.engines.sampling import UNKNOWN_LOGPROB
from dovetail.pipeline.generation import Generation
from dovetail.pipeline.guided_decoding import OutputPhase
from dovetail.pipeline.observer import RequestObserver
from dovetail.pipeline.panics import convert_panics
from dovetail.pipeline.preparation import PreparedRequest
from dovetail.pipeline.registry import TokenModel
from dovetail.pipeline.scheduled_turn import begin_turn, end_turn
from dovetail.pipeline.session_keys import cache_salt, parent_session_key, session_key
from dovetail.pipeline.sinks import EventSink
from dovetail.pipeline.warming import warm_request
from dovetail_model import (
    AppliedEdits,
    DovetailError,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Event,
    Finish,
    FinishReason,
    InternalError,
    InvalidEngineResponse,
    Logprobs,
    Usage,
)


class ChoiceRunner:
    """Runs one choice of a response. The engine pushes tokens to it: it is a `TokenSink`.

    `limit`: the number of tokens that the context window leaves for the output.
    """

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
        requested = prepared.request.sampling.max_tokens
        self._limit = limit if requested is None else min(requested, limit)
        self._clamped = self._limit == limit  # the context window limits the output
        self._observer = observer
        self._choice = choice
        self._cached_tokens: int | None = None
        # Hidden stop tokens are part of the ids but of no block.
        self._exact = not prepared.request.sampling.ignore_eos
        self._migrations = 0
        self._migrated_at = 0  # number of generated tokens at the last migration
        self._attempts = 0  # number of engine requests
        self._started = False  # whether any event was emitted
        self._recorded = False
        self._dropped_tokens = 0  # generated tokens that are not part of the turn
        self._engine_finish: FinishReason | None = None  # why the engine stopped
        self._finish_reason: FinishReason | None = None  # why the choice ended
        sessions = entry.engine.sessions
        self._session_turn = None if sessions is None else begin_turn(sessions, entry, prepared)
        model = entry.model
        # The budget can be enforced only if the tokens that end reasoning are known.
        self._reasoning_budget = (
            prepared.request.thinking.budget if model.reasoning_end_ids else None
        )

    async def run(self, sink: EventSink) -> None:
        """Emit the events: a usage with the input tokens first, final usage and finish last.

        Errors before the first event are raised; later errors are emitted as a `Failure`.
        """
        self._sink = sink
        for note in (await self._entry.output_constraint(self._prepared)).notes:
            self._observer.on_note(note)
        slow_start = asyncio.get_running_loop().call_later(
            self._entry.start_timeout_seconds, self._start_without_engine
        )
        try:
            await self._entry.preparer.open_turn(self._prepared, self._generation)
            with convert_panics():
                await self._generate()
                finish_events = self._finish_events()
                await self._record()
                self._emit(finish_events)
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
            slow_start.cancel()
            if self._session_turn is not None:
                end_turn(self._session_turn, self._prepared, self._generation, self._finish_reason)
            if self._started:
                self._observer.on_choice_finished(
                    self._choice, self._usage(), self._cached_tokens is not None
                )
            await self._record()  # after a failure or a disconnect
        self._warm_next_prompt()

    def push(self, delta: TokenDelta) -> bool:
        """Process tokens from the engine. This is the hot path: it runs for every token."""
        # Only the first request counts: later ones of the choice always hit the cache.
        if delta.cached is not None and self._attempts == 1:
            self._cached_tokens = min(delta.cached, len(self._prepared.prompt.ids))
        if not delta.exact and self._exact:
            self._exact = False
            self._observer.on_inexact()
        generation = self._generation
        events = self._decode_with_logprobs(delta) if delta.logprobs else generation.feed(delta.ids)
        if delta.finish is not None:
            self._engine_finish = delta.finish
        if not self._started:
            has_room = self._emit(events)
        else:
            has_room = not events or self._sink.write(self._choice, events)
        return (
            has_room
            and not generation.stopped
            and (self._reasoning_budget is None or not self._is_budget_spent())
        )

    def _decode_with_logprobs(self, delta: TokenDelta) -> list[Event]:
        """Process tokens with logprobs: record them, and emit them if the client requested them."""
        missing = len(delta.ids) - len(delta.logprobs)
        # An engine may report the stop token without its logprob.
        if missing == 0 or (missing == 1 and delta.finish == "stop"):
            values = (one.logprob for one in delta.logprobs)
            self._generation.add_logprobs(nan if v == UNKNOWN_LOGPROB else v for v in values)
        before = len(self._generation.ids)
        events = self._generation.feed(delta.ids)
        if self._prepared.request.sampling.logprobs is not None:
            shown = delta.logprobs
            if self._generation.stop_held:  # the stop token may yet be dropped
                shown = shown[: len(self._generation.ids) - before]
            events.insert(0, Logprobs(shown))
        return events

    async def drain(self) -> bool:
        """Wait until the sink has room. Returns whether the engine must continue."""
        if self._generation.stopped or self._is_budget_spent():
            return False
        await self._sink.drain()
        return True

    def _emit(self, events: list[Event]) -> bool:
        if not self._started:
            self._started = True
            edits = self._prepared.applied_edits
            events[:0] = [self._usage(), AppliedEdits(edits)] if edits else [self._usage()]
        return self._sink.write(self._choice, events)

    def _start_without_engine(self) -> None:
        """Open the response stream without waiting for a slow engine."""
        if not self._started:
            self._emit([])

    async def _generate(self) -> None:
        """Generate the output in one or more engine requests that continue each other.

        When the reasoning budget is spent, the server ends the reasoning, provided that tokens for
        further output are left; otherwise the choice ends there. If the replica fails, the choice
        is migrated to another one, or continues on the only replica after its recovery.
        """
        while not self._is_finished():
            self._attempts += 1
            try:
                await self._entry.engine.generate(
                    await self._engine_request(),
                    self,
                    self._observer.on_replica_assigned,
                    self._session_turn,
                )
                if not (self._is_finished() or self._is_budget_spent()):
                    raise InvalidEngineResponse("the engine sent no finish reason")
            except EngineError as error:
                if self._is_finished():
                    return  # the output is complete
                if self._generation.ids and len(self._generation.ids) >= self._limit:
                    self._engine_finish = "length"  # only the finish reason is missing
                    return
                if not (await self._can_migrate(error) or await self._wait_for_recovery(error)):
                    raise
                self._migrations += 1
                self._migrated_at = len(self._generation.ids)
                self._observer.on_migrated(self._migrated_at)
                continue
            if self._is_finished():
                await self._recover()
            elif not self._end_reasoning():
                self._engine_finish = "length"  # no token would be left after the end of reasoning
            if not self._is_finished():
                await self._sink.drain()

    async def _recover(self) -> None:
        """Reopen a turn that ended with a defect. Turns are not recovered by default."""

    def _end_reasoning(self) -> bool:
        """End the open reasoning for the model. Returns False if no tokens would be left then."""
        start, closing = len(self._generation.ids), list(self._entry.model.reasoning_end_ids)
        if self._limit - start <= len(closing):
            return False
        self._insert(closing)
        return True

    def _insert(self, ids: list[int]) -> None:
        """Continue the output with ids that the model did not choose."""
        start = len(self._generation.ids)
        self.push(TokenDelta(ids=ids))
        self._generation.mark_forced(start)

    def _is_finished(self) -> bool:
        return self._generation.stopped or self._engine_finish is not None

    async def _can_migrate(self, error: DovetailError) -> bool:
        """Return whether another replica can continue the output."""
        generated, entry = self._generation.ids, self._entry
        # A replica that is alive still counts as available, but is no alternative to itself.
        replica_alive = not isinstance(error, EngineUnavailable | EngineTimeout)
        if (
            self._migrations >= entry.migration_limit
            or entry.engine.available_count <= replica_alive
        ):
            return False
        if replica_alive and generated:
            return False  # the request itself probably causes the failure
        return not generated or await self._can_resume()

    async def _wait_for_recovery(self, error: DovetailError) -> bool:
        """Wait for a replica to recover. Returns False at once if there is no new output.

        A replica that fails again without new output probably fails because of this request.
        """
        entry, generated = self._entry, len(self._generation.ids)
        if not isinstance(error, EngineUnavailable | EngineTimeout) or entry.engine.available_count:
            return False
        if self._migrations >= entry.migration_limit or generated <= self._migrated_at:
            return False
        return await self._can_resume() and await entry.engine.wait_available(entry.recovery_wait)

    async def _can_resume(self) -> bool:
        """Return whether the output can be continued. A grammar cannot be resumed in its middle."""
        if self._phase() is not None:
            return True
        return (await self._entry.output_constraint(self._prepared)).is_unconstrained

    def _is_budget_spent(self) -> bool:
        """Return whether the reasoning budget is spent.

        Pending text may be the beginning of the model's own end marker, so the model gets a few
        more tokens to complete it. This grace is limited because the model may repeat it.
        """
        budget, generation = self._reasoning_budget, self._generation
        if budget is None or not generation.in_reasoning or generation.reasoning_tokens < budget:
            return False
        grace = 2 * len(self._entry.model.reasoning_end_ids)
        return not generation.has_pending_text or generation.reasoning_tokens >= budget + grace

    async def _engine_request(self) -> EngineRequest:
        request, generated = self._prepared.request, self._generation.ids
        entry, prompt = self._entry, self._prepared.prompt
        sampling = entry.resolve_sampling(request.sampling)
        if sampling.seed is not None:
            sampling = msgspec.structs.replace(sampling, seed=sampling.seed + self._choice)
        if sampling.min_tokens and generated:
            left = max(0, sampling.min_tokens - len(generated))
            sampling = msgspec.structs.replace(sampling, min_tokens=left)
        return EngineRequest(
            id=self._generation.entry_id,
            prompt=prompt.ids + generated if generated else prompt.ids,
            max_tokens=self._limit - len(generated),
            sampling=sampling,
            stop_ids=self._generation.stop_ids,
            constraint=await self._constraint(),
            session=session_key(self._prepared),
            priority=request.hints.priority or 0,
            cache_salt=cache_salt(request),
            expected_tokens=request.hints.osl,
            ends_session=request.identity.final,
            adapter=entry.adapter,
            parent_session=parent_session_key(request.identity),
            strict_priority=request.hints.strict_priority or 0,
        )

    async def _constraint(self) -> Constraint | None:
        """Return the constraint for the rest of the output, None after text or calls."""
        phase = self._phase()
        if phase is None:
            return None
        return (await self._entry.output_constraint(self._prepared, phase)).constraint

    def _phase(self) -> OutputPhase | None:
        """Return the phase of the output, or None after text or calls."""
        generation = self._generation
        if not generation.ids:
            return "start"
        model = self._entry.model
        closing = model.tokenizer.decode(model.reasoning_end_ids)
        if not generation.is_only_reasoning(closing):
            return None
        return "reasoning" if generation.in_reasoning else "after_reasoning"

    def _usage(self) -> Usage:
        generated = self._generation.ids  # without the stop token, which counts as output
        return Usage(
            input_tokens=len(self._prepared.prompt.ids),
            output_tokens=len(generated)
            + (self._generation.stopped and bool(generated))
            + self._dropped_tokens,
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
        """Record the turn, even if the client disconnected, because it may send the turn back.

        A turn that was emitted but cannot be recorded stays open.
        """
        if self._recorded:
            return
        if self._exact and self._generation.ids:
            self._recorded = True
            await self._entry.preparer.record(self._prepared, self._generation)
        elif not self._generation.ids and self._finish_reason is None:
            self._recorded = True
            await self._entry.preparer.close_turn(self._prepared, self._generation)

    def _warm_next_prompt(self) -> None:
        """Prefill the next prompt before the user sends it.

        This is done if the client requested it, or while sessions are scheduled. It is useless
        after a call, because the next prompt then extends this one, which the engine has cached.
        """
        request, engine = self._prepared.request, self._entry.engine
        if request.identity.final or self._finish_reason != "stop":
            return
        if request.hints.speculative_prefill or engine.prefills_ahead:
            engine.warm(session_key(self._prepared), self._next_warm_request)

    async def _next_warm_request(self) -> EngineRequest | None:
        ids = await self._entry.preparer.predict_next_prompt(self._prepared, self._generation)
        name, session = self._generation.entry_id, session_key(self._prepared)
        return warm_request(self._entry, self._prepared.request, ids, (name, session))
