"""One choice of an upstream's answer: its events, with what clients keep of them made ours.

Calls get ids that are unique here, and thoughts get seals, so that a client that may not show them
still carries them back. What was sealed is put into the next request in the model's own words.
"""

from collections.abc import Callable
from contextlib import aclosing

import msgspec

from dovetail.engines.outward import to_public_error
from dovetail.ledger.entry import EntrySpan, create_entry_id
from dovetail.ledger.sealed import SealPayload
from dovetail.pipeline.choice_runner import HOLD, Watch
from dovetail.pipeline.concurrency import held
from dovetail.pipeline.registry import Relayed
from dovetail.pipeline.sinks import Audience
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
    error_of,
)


class Relay:
    """One choice of an answer."""

    def __init__(
        self,
        served: Relayed,
        request: Request,
        new_call_id: Callable[[], str],
        watch: Watch,
        choice: int = 0,
    ) -> None:
        self._served = served
        self._request = _as_sent(served, request, choice)
        self._new_call_id = new_call_id
        self._watch = watch
        self._choice = choice
        self._begun = False  # whether anything was told
        self._thought: list[str] = []

    async def speak(self, audience: Audience) -> None:
        """Tells its events, the finish last. Raises before the first; a later fault is told."""
        answer = self._served.engine.stream(self._request)
        self._watch.relayed(sum(turn.role == "assistant" for turn in self._request.turns))
        try:
            async with aclosing(answer), aclosing(held(answer, HOLD)) as batches:
                async for batch in batches:
                    if await self._pass_on([Usage()] if batch is None else batch, audience):
                        return  # nothing counts behind it
            raise EngineUnavailable("the upstream ended its answer without a word")
        except DovetailError as error:
            if not self._begun:
                raise
            audience.hear(self._choice, [to_public_error(error).failure()])
        except Exception as error:
            if not self._begun:
                raise
            audience.hear(self._choice, [InternalError(f"{type(error).__name__}").failure()])
            raise

    async def _pass_on(self, batch: list[Event], audience: Audience) -> bool:
        """Whether the answer has ended with this batch. Raises the failure that it ends with."""
        told = self._ours(batch)
        failure = told.pop() if told and isinstance(told[-1], Failure) else None
        if told:
            self._begun = True
            if not audience.hear(self._choice, told):
                await audience.room()
        if isinstance(failure, Failure):
            raise error_of(failure)
        return bool(told) and isinstance(told[-1], Finish)

    def _ours(self, batch: list[Event]) -> list[Event]:
        """A batch with what is ours in it, up to the end of the answer or its failure."""
        told: list[Event] = []
        for event in batch:
            if told and isinstance(told[-1], Finish | Failure):
                break
            match event:
                case CallOpen():
                    event = msgspec.structs.replace(event, id=self._new_call_id())
                case ReasoningDelta(text=text):
                    self._thought.append(text)
                case SpanEnd(kind="reasoning", seal=seal):
                    event = msgspec.structs.replace(event, seal=self._seal(seal))
            told.append(event)
        return told

    def _seal(self, theirs: str | None) -> str:
        """The thought that has just ended, for the client to carry, and the upstream's own seal."""
        text = "".join(self._thought)
        self._thought.clear()
        sealed = SealPayload(
            entry=create_entry_id(),
            parent=None,
            generated=b"",
            spans=(EntrySpan("reasoning", raw=theirs or "", shown=text),),
            before=b"",
            head=b"",
        )
        return self._served.sealer.seal(sealed, self._request.identity.tenant, _owner(self._served))


def _as_sent(served: Relayed, request: Request, choice: int) -> Request:
    """The request as the upstream gets it: stable, with every thought that the client carried."""
    request = served.stabilizer.normalize(request)
    turns = tuple(_restored(served, request, turn) for turn in request.turns)
    sampling = msgspec.structs.replace(served.sampling(request.sampling), n=1)
    if sampling.seed is not None:
        sampling = msgspec.structs.replace(sampling, seed=sampling.seed + choice)
    return msgspec.structs.replace(request, turns=turns, sampling=sampling)


def _restored(served: Relayed, request: Request, turn: Turn) -> Turn:
    if turn.role != "assistant" or not any(isinstance(b, ReasoningBlock) for b in turn.blocks):
        return turn
    tenant = request.identity.tenant
    return Turn(turn.role, tuple(_opened(served, tenant, block) for block in turn.blocks))


def _opened(served: Relayed, tenant: str, block: Block) -> Block:
    if not isinstance(block, ReasoningBlock) or block.seal is None:
        return block
    found = served.sealer.open(block.seal, tenant, _owner(served))
    if not isinstance(found, SealPayload) or not found.spans:
        return msgspec.structs.replace(block, seal=None)  # nobody's, or another server's
    thought = found.spans[-1]
    return msgspec.structs.replace(block, text=thought.shown, seal=thought.raw or None)


def _owner(served: Relayed) -> str:
    """What a seal is bound to beside its tenant."""
    return f"upstream:{served.name}"
