"""One choice of an upstream's answer: its events, with what clients keep of them made ours.

Calls get ids that are unique here, and thoughts get seals, so that a client that may not show them
still carries them back. What was sealed is put into the next request in the model's own words.
"""

from collections.abc import Callable
from contextlib import aclosing

import msgspec

from dovetail.engines.engine import to_public_error
from dovetail.ledger.entry import EntrySpan, create_entry_id
from dovetail.ledger.seal import SealPayload
from dovetail.pipeline.choice_runner import RequestObserver
from dovetail.pipeline.concurrency import signal_slow_start
from dovetail.pipeline.registry import UpstreamModel
from dovetail.pipeline.sinks import EventSink
from dovetail_model import (
    Block,
    CallOpen,
    DovetailError,
    EngineUnavailable,
    Event,
    Failure,
    Finish,
    InternalError,
    ReasoningBlock,
    ReasoningDelta,
    Request,
    SpanEnd,
    Turn,
    Usage,
    error_from_failure,
)


class UpstreamRunner:
    """One choice of an answer."""

    def __init__(
        self,
        entry: UpstreamModel,
        request: Request,
        new_call_id: Callable[[], str],
        observer: RequestObserver,
        choice: int = 0,
    ) -> None:
        self._entry = entry
        self._request = _upstream_request(entry, request, choice)
        self._new_call_id = new_call_id
        self._observer = observer
        self._choice = choice
        self._started = False  # whether anything was told
        self._reasoning: list[str] = []

    async def run(self, sink: EventSink) -> None:
        """Tells its events, the finish last. Raises before the first; a later fault is told."""
        answer = self._entry.engine.stream(self._request)
        self._observer.on_upstream_request(
            sum(turn.role == "assistant" for turn in self._request.turns)
        )
        try:
            async with (
                aclosing(answer),
                aclosing(signal_slow_start(answer, self._entry.start_timeout_seconds)) as batches,
            ):
                async for batch in batches:
                    if await self._forward([Usage()] if batch is None else batch, sink):
                        return  # nothing counts behind it
            raise EngineUnavailable("the upstream ended its answer without a word")
        except DovetailError as error:
            if not self._started:
                raise
            sink.write(self._choice, [to_public_error(error).to_failure()])
        except Exception as error:
            if not self._started:
                raise
            sink.write(self._choice, [InternalError(f"{type(error).__name__}").to_failure()])
            raise

    async def _forward(self, batch: list[Event], sink: EventSink) -> bool:
        """Whether the answer has ended with this batch. Raises the failure that it ends with."""
        told = self._rewrite_events(batch)
        failure = told.pop() if told and isinstance(told[-1], Failure) else None
        if told:
            self._started = True
            if not sink.write(self._choice, told):
                await sink.drain()
        if isinstance(failure, Failure):
            raise error_from_failure(failure)
        return bool(told) and isinstance(told[-1], Finish)

    def _rewrite_events(self, batch: list[Event]) -> list[Event]:
        """A batch with what is ours in it, up to the end of the answer or its failure."""
        told: list[Event] = []
        for event in batch:
            if told and isinstance(told[-1], Finish | Failure):
                break
            match event:
                case CallOpen():
                    event = msgspec.structs.replace(event, id=self._new_call_id())
                case ReasoningDelta(text=text):
                    self._reasoning.append(text)
                case SpanEnd(kind="reasoning", seal=seal):
                    event = msgspec.structs.replace(event, seal=self._seal_reasoning(seal))
            told.append(event)
        return told

    def _seal_reasoning(self, upstream_seal: str | None) -> str:
        """The thought that has just ended, for the client to carry, and the upstream's own seal."""
        text = "".join(self._reasoning)
        self._reasoning.clear()
        sealed = SealPayload(
            entry=create_entry_id(),
            parent=None,
            generated=b"",
            spans=(EntrySpan("reasoning", raw=upstream_seal or "", shown=text),),
            chain_before=b"",
            head=b"",
        )
        return self._entry.sealer.seal(
            sealed, self._request.identity.tenant, _seal_owner(self._entry)
        )


def _upstream_request(entry: UpstreamModel, request: Request, choice: int) -> Request:
    """The request as the upstream gets it: stable, with every thought that the client carried."""
    request = entry.normalizer.normalize(request)
    turns = tuple(_restore_turn(entry, request, turn) for turn in request.turns)
    sampling = msgspec.structs.replace(entry.resolve_sampling(request.sampling), n=1)
    if sampling.seed is not None:
        sampling = msgspec.structs.replace(sampling, seed=sampling.seed + choice)
    return msgspec.structs.replace(request, turns=turns, sampling=sampling)


def _restore_turn(entry: UpstreamModel, request: Request, turn: Turn) -> Turn:
    if turn.role != "assistant" or not any(isinstance(b, ReasoningBlock) for b in turn.blocks):
        return turn
    tenant = request.identity.tenant
    return Turn(turn.role, tuple(_open_seal(entry, tenant, block) for block in turn.blocks))


def _open_seal(entry: UpstreamModel, tenant: str, block: Block) -> Block:
    if not isinstance(block, ReasoningBlock) or block.seal is None:
        return block
    found = entry.sealer.open(block.seal, tenant, _seal_owner(entry))
    if not isinstance(found, SealPayload) or not found.spans:
        return msgspec.structs.replace(block, seal=None)  # nobody's, or another server's
    thought = found.spans[-1]
    return msgspec.structs.replace(block, text=thought.shown, seal=thought.raw or None)


def _seal_owner(entry: UpstreamModel) -> str:
    """What a seal is bound to beside its tenant."""
    return f"upstream:{entry.name}"
