"""Run a choice and recover its turn if it ends inside reasoning, stays blank, or loops.

Each recovery happens at most once per turn, and `max_tokens` limits the turn with everything that
is inserted or dropped. See docs/recovery.md.
"""

from collections.abc import Callable

import msgspec

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.pipeline.choice_runner import ChoiceRunner
from dovetail.pipeline.generation import Generation
from dovetail.pipeline.observer import RequestObserver
from dovetail.pipeline.preparation import PreparedRequest
from dovetail.pipeline.recovery import CALL_END_FACTOR, CALL_LOOP_FACTOR, RecoveryKind
from dovetail.pipeline.registry import TokenModel
from dovetail.pipeline.repetition import RepetitionDetector
from dovetail.pipeline.sinks import EventSink
from dovetail.prompt.loop_notices import find_repeated_calls
from dovetail_model import (
    Event,
    Logprobs,
    OutputBlock,
    ReasoningBlock,
    SpanEnd,
    TextBlock,
    TextDelta,
)
from dovetail_tokenizers import Tokenizer

_REPEATED_CALLS_TEXT = (
    "The server ended this turn: the same tool call was made {times} times, and its result was the "
    "same each time."
)
#: Added to the seed of a request for the second sample: more than the seeds of its choices differ.
_SEED_STEP = 1_000


class RecoveringRunner(ChoiceRunner):
    """Runs one choice like `ChoiceRunner`, with the recoveries that the model's policy enables."""

    def __init__(
        self,
        entry: TokenModel,
        prepared: PreparedRequest,
        new_call_id: Callable[[], str],
        limit: int,
        observer: RequestObserver,
        choice: int = 0,
    ) -> None:
        super().__init__(entry, prepared, new_call_id, limit, observer, choice)
        self._policy = entry.recovery
        self._recovers_reasoning = bool(
            "reasoning" in self._policy.kinds and entry.model.reasoning_end_ids
        )
        self._recovers_empty = "empty" in self._policy.kinds
        self._generation.holds_reasoning_end = self._recovers_reasoning
        self._blank_text: BlankTextBuffer | None = None
        self._resampled_at: int | None = None  # number of tokens before the second sample
        self._detector = self._create_detector()
        self._loop_end: int | None = None  # number of tokens at which a loop ends at the latest

    async def run(self, sink: EventSink) -> None:
        if self._recovers_empty:
            sink = self._blank_text = BlankTextBuffer(sink)
        await super().run(sink)

    def push(self, delta: TokenDelta) -> bool:
        has_room = super().push(delta)
        if self._blank_text is not None and self._blank_text.has_passed:
            self._sink, self._blank_text = self._blank_text.sink, None
        detector = self._detector
        if detector is not None and len(self._generation.ids) >= detector.next_check:
            self._check_for_loop(detector)
        return has_room and (self._loop_end is None or not self._is_looping())

    async def drain(self) -> bool:
        return not self._is_looping() and await super().drain()

    def _is_finished(self) -> bool:
        return super()._is_finished() or self._is_looping()

    async def _generate(self) -> None:
        if not await self._end_repeated_calls():
            await super()._generate()

    async def _recover(self) -> None:
        if self._is_looping() and not self._generation.stopped:
            self._end_loop()
            return
        stopped = self._generation.ended_by_model or self._is_stopped_by_engine()
        if stopped and not await self._recover_reasoning():
            await self._recover_empty()

    def _is_stopped_by_engine(self) -> bool:
        """Return whether the engine reported a stop without the stop token.

        The token may be one of the request's own, if it has any.
        """
        own = self._prepared.request.sampling.stop_token_ids
        return self._engine_finish == "stop" and not self._generation.stopped and not own

    # An end inside reasoning

    async def _recover_reasoning(self) -> bool:
        """End the open reasoning in place of the stop token. Returns whether it could be ended."""
        generation = self._generation
        if not (self._recovers_reasoning and generation.in_reasoning):
            return False
        if generation.call_count or not await self._can_resume():
            return False
        return self._reopen_reasoning(int(generation.stopped), "reasoning")

    def _reopen_reasoning(self, dropped: int, kind: RecoveryKind) -> bool:
        closing = self._closing_ids()
        if self._limit - dropped - len(self._generation.ids) <= len(closing):
            return False
        self._recovers_reasoning = self._generation.holds_reasoning_end = False
        self._reopen(dropped)
        self._insert(closing)
        self._observer.on_recovered(kind, len(closing), dropped)
        return True

    def _closing_ids(self) -> list[int]:
        """Return the ids that end reasoning, without white space that the output ends with."""
        model, generated = self._entry.model, self._generation.ids
        closing = model.tokenizer.decode(model.reasoning_end_ids)
        space = closing[: len(closing) - len(closing.lstrip())]
        if space and generated and model.tokenizer.decode(generated[-4:]).endswith(space):
            return model.tokenizer.encode(closing.lstrip())
        return list(model.reasoning_end_ids)

    # Blank turns

    async def _recover_empty(self) -> None:
        """Sample the rest of a blank turn once more: after its reasoning, which was sent."""
        if not self._recovers_empty or self._blank_text is None or not self._can_differ():
            return
        generation = self._generation
        start = find_blank_start(generation, self._entry.model.tokenizer)
        dropped = len(generation.ids) - (start or 0) + generation.stopped
        if start is None or self._limit - dropped <= start:
            return
        self._recovers_empty = False
        self._generation = generation.rewind(start)
        if not await self._can_resume():
            self._generation = generation
            return
        self._blank_text.clear()
        self._resampled_at = start
        self._reopen(dropped)
        self._detector = self._create_detector()
        self._observer.on_recovered("empty", 0, dropped)

    def _can_differ(self) -> bool:
        """Return whether a second sample can differ from the first."""
        entry = self._entry
        sampling = entry.resolve_sampling(self._prepared.request.sampling)
        return sampling.temperature != 0 or "min_tokens" in entry.engine.capabilities.sampling

    async def _engine_request(self) -> EngineRequest:
        request = await super()._engine_request()
        if self._resampled_at is None:
            return request
        sampling = request.sampling
        if sampling.seed is not None:
            sampling = msgspec.structs.replace(sampling, seed=sampling.seed + _SEED_STEP)
        first = len(self._generation.ids) == self._resampled_at
        has_min_tokens = "min_tokens" in self._entry.engine.capabilities.sampling
        if first and has_min_tokens and request.constraint is None:
            # The model must not end the turn at once again.
            min_tokens = max(1, sampling.min_tokens or 0)
            sampling = msgspec.structs.replace(sampling, min_tokens=min_tokens)
        return msgspec.structs.replace(request, sampling=sampling)

    # Loops

    def _create_detector(self) -> RepetitionDetector | None:
        if "loop" not in self._policy.kinds:
            return None
        return RepetitionDetector(self._generation.ids, self._policy.loop_tokens)

    def _check_for_loop(self, detector: RepetitionDetector) -> None:
        """Look for a loop. A call that repeats complete calls may end, so that it can be run."""
        generation = self._generation
        length, grace = len(generation.ids), 0
        period = detector.find_period()
        if period is not None and generation.in_call:
            if length - max(generation.block_ends) > period:
                period = detector.find_period(CALL_LOOP_FACTOR)  # inside of the arguments
            else:
                grace = period
        if period is not None and self._loop_end is None:
            self._loop_end = length + grace

    def _is_looping(self) -> bool:
        """Return whether a loop was found, and the output can be ended now."""
        end, generation = self._loop_end, self._generation
        return end is not None and (len(generation.ids) >= end or not generation.in_call)

    def _end_loop(self) -> None:
        """End a loop: inside reasoning only the reasoning, if possible, otherwise the turn."""
        if (
            self._recovers_reasoning
            and self._generation.in_reasoning
            and not self._generation.call_count
            and self._reopen_reasoning(0, "loop")
        ):
            return
        self._engine_finish = "stop"
        self._generation.repeated = True
        self._observer.on_recovered("loop", 0, 0)

    async def _end_repeated_calls(self) -> bool:
        """End the turn with a text instead of yet another identical call."""
        if "loop" not in self._policy.kinds:
            return False
        repeated = find_repeated_calls(self._prepared.request.turns)
        if repeated is None or repeated.times < self._policy.identical_calls * CALL_END_FACTOR:
            return False
        if not (await self._entry.output_constraint(self._prepared)).is_unconstrained:
            return False  # the request requires another form
        text = _REPEATED_CALLS_TEXT.format(times=repeated.times)
        closing = list(self._entry.model.reasoning_end_ids) if self._generation.in_reasoning else []
        ids = [*closing, *self._entry.model.tokenizer.encode(text)]
        if len(ids) > self._limit:
            return False
        self._engine_finish = "stop"
        self._insert(ids)
        self._observer.on_recovered("loop", len(ids), 0)
        return True

    def _reopen(self, dropped: int) -> None:
        """Continue the turn without its last `dropped` tokens, which the limit includes."""
        self._engine_finish = self._loop_end = None
        self._dropped_tokens += dropped
        self._limit -= dropped
        self._generation.reopen()


class BlankTextBuffer:
    """Holds back blank text at the start of a choice, so that it can be replaced.

    `sink`: where everything else is written to.
    `has_passed`: whether visible text or a call was written, after which nothing is held back.
    """

    __slots__ = ("_held", "has_passed", "sink")

    def __init__(self, sink: EventSink) -> None:
        self._held: list[Event] = []
        self.has_passed = False
        self.sink = sink

    def write(self, choice: int, events: list[Event]) -> bool:
        events = [*self._held, *events]
        end = next((at for at in range(len(events), 0, -1) if not _is_blank(events[at - 1])), 0)
        self._held = events[end:]
        shown = events[:end]
        self.has_passed = self.has_passed or any(map(_is_output, shown))
        if self.has_passed:
            shown, self._held = events, []
        return not shown or self.sink.write(choice, shown)

    async def drain(self) -> None:
        await self.sink.drain()

    def clear(self) -> None:
        """Drop the text that is held back."""
        self._held = []


def _is_blank(event: Event) -> bool:
    """Return whether an event shows nothing by itself."""
    if isinstance(event, TextDelta):
        return not event.text.strip()
    return isinstance(event, Logprobs) or (isinstance(event, SpanEnd) and event.kind == "text")


def _is_output(event: Event) -> bool:
    """Return whether an event is visible text or belongs to a call."""
    if isinstance(event, TextDelta):
        return bool(event.text.strip())
    return event.type.startswith("call_")


def find_blank_start(generation: Generation, tokenizer: Tokenizer) -> int | None:
    """Return after how many tokens the output is blank: at its start, or after its reasoning.

    None if it has visible text or a call, or if its reasoning has not ended.
    """
    if any(map(_is_visible, generation.message().blocks)):
        return None
    ids = generation.ids
    finished = generation.rewind(len(ids))
    finished.finish()  # text may be held back
    blocks = finished.message().blocks
    if any(map(_is_visible, blocks)):
        return None
    if not blocks:
        return 0
    if generation.in_reasoning:
        return None
    start = len(ids)
    while start > generation.forced_until and not tokenizer.decode(ids[start - 1 : start]).strip():
        start -= 1
    return start


def _is_visible(block: OutputBlock) -> bool:
    """Return whether a block is a call, or text that is not blank."""
    if isinstance(block, TextBlock):
        return bool(block.text.strip())
    return not isinstance(block, ReasoningBlock)
