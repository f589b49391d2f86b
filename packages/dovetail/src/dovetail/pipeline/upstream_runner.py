"""Run one choice on an upstream engine: forward its events with local call ids and seals.

Calls get ids that are unique on this server. Reasoning gets seals, so that clients send it back
even if they hide it. The next request to the upstream contains the original reasoning.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from dovetail.engines.engine import to_public_error
from dovetail.ledger.entry import EntrySpan, create_entry_id
from dovetail.ledger.seal import SealPayload
from dovetail.pipeline.call_limit import CallLimit
from dovetail.pipeline.concurrency import signal_slow_start
from dovetail.pipeline.hosted_search import HostedSearches
from dovetail.pipeline.input_count import InputCounter
from dovetail.pipeline.observer import RequestObserver
from dovetail.pipeline.panics import convert_panics
from dovetail.pipeline.registry import UpstreamModel
from dovetail.pipeline.sinks import EventSink
from dovetail.prompt.conversation_view import append_unavailable, note_unavailable
from dovetail_model import (
    Block,
    CallOpen,
    Citation,
    Diagnostic,
    DovetailError,
    EngineUnavailable,
    Event,
    Failure,
    Finish,
    FinishReason,
    HostedItem,
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
    """Runs one choice of a response on an engine that renders and parses by itself."""

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
        self._call_limit = CallLimit(self._request)
        self._new_call_id = new_call_id
        self._observer = observer
        self._choice = choice
        self._started = False  # whether any event was emitted
        self._input = InputCounter(entry, request, observer)
        self._searches = HostedSearches(new_call_id)
        self._reasoning: list[str] = []

    async def run(self, sink: EventSink) -> None:
        """Emit the events, finish last. Errors after the first event are emitted as `Failure`."""
        for note in note_unavailable(self._request):
            self._observer.on_note(note)
        stream = self._entry.engine.stream(self._request)
        self._observer.on_upstream_request(
            sum(turn.role == "assistant" for turn in self._request.turns)
        )
        try:
            with convert_panics():
                await self._forward_all(stream, sink)
        except DovetailError as error:
            if not self._started:
                raise
            sink.write(self._choice, [to_public_error(error).to_failure()])
        except Exception as error:
            if not self._started:
                raise
            sink.write(self._choice, [InternalError(f"{type(error).__name__}").to_failure()])
            raise

    async def _forward_all(self, stream: AsyncGenerator[list[Event]], sink: EventSink) -> None:
        """Write the batches of a stream until its finish. Later events are ignored."""
        self._input.start()
        try:
            async with (
                aclosing(stream),
                aclosing(signal_slow_start(stream, self._entry.start_timeout_seconds)) as batches,
            ):
                async for batch in batches:
                    if await self._forward(await self._start_batch(batch), sink):
                        return
        finally:
            self._input.stop()
        raise EngineUnavailable("the upstream closed the stream before the end of the response")

    async def _start_batch(self, batch: list[Event] | None) -> list[Event]:
        """Return a batch, after the first usage if the response starts with it.

        None is the batch of an upstream that is slow to start.
        """
        if self._started:
            return batch or []
        first = await self._input.first_usage(batch or ())
        return first or [Usage()] if batch is None else [*first, *batch]

    async def _forward(self, batch: list[Event], sink: EventSink) -> bool:
        """Write a batch. Returns whether it ended the stream, or raises its failure."""
        events = self._rewrite_events(batch)
        failure = events.pop() if events and isinstance(events[-1], Failure) else None
        if events:
            self._started = True
            if not sink.write(self._choice, events):
                await sink.drain()
        if isinstance(failure, Failure):
            raise error_from_failure(failure)
        return bool(events) and isinstance(events[-1], Finish)

    def _rewrite_events(self, batch: list[Event]) -> list[Event]:
        """Replace call ids and seals in a batch, up to the finish or failure."""
        events: list[Event] = []
        for event in batch:
            if events and isinstance(events[-1], Finish | Failure):
                break
            match event:
                case CallOpen(index=index) if self._call_limit.excludes(event):
                    # The server ignored which calls the client allows.
                    reason: FinishReason = "tool_calls" if index > 0 else "stop"
                    events += [Diagnostic("usage_unknown"), Usage(), Finish(reason)]
                    break
                case CallOpen():
                    event = msgspec.structs.replace(event, id=self._new_call_id())
                case HostedItem() if self._request.client.api != "responses":
                    events += self._searches.convert(event)
                    continue
                case Citation(url="") if self._request.client.api != "responses":
                    event = Diagnostic("annotation_not_carried")  # a file of the upstream
                case Usage():
                    # If the upstream does not count, the first number is better than none.
                    tokens = event.input_tokens or self._input.tokens
                    event = msgspec.structs.replace(
                        event, input_tokens=tokens, web_searches=self._searches.count
                    )
                case ReasoningDelta(text=text):
                    self._reasoning.append(text)
                case SpanEnd(kind="reasoning", seal=seal):
                    event = msgspec.structs.replace(event, seal=self._seal_reasoning(seal))
            events.append(event)
        return events

    def _seal_reasoning(self, upstream_seal: str | None) -> str:
        """Seal the reasoning that has just ended, together with the seal of the upstream."""
        text = "".join(self._reasoning)
        self._reasoning.clear()
        payload = SealPayload(
            entry=create_entry_id(),
            parent=None,
            generated=b"",
            spans=(EntrySpan("reasoning", raw=upstream_seal or "", shown=text),),
            chain_before=b"",
            head=b"",
        )
        return self._entry.sealer.seal(
            payload, self._request.identity.tenant, _seal_owner(self._entry)
        )


def _upstream_request(entry: UpstreamModel, request: Request, choice: int) -> Request:
    """Build the upstream request: normalized, with the sealed reasoning restored."""
    request = append_unavailable(entry.normalizer.normalize(request))
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
    payload = entry.sealer.open(block.seal, tenant, _seal_owner(entry))
    if not isinstance(payload, SealPayload) or not payload.spans:
        return msgspec.structs.replace(block, seal=None)  # invalid, or from another server
    span = payload.spans[-1]
    return msgspec.structs.replace(block, text=span.shown, seal=span.raw or None)


def _seal_owner(entry: UpstreamModel) -> str:
    """Return the model name that a seal is bound to in addition to its tenant."""
    return f"upstream:{entry.name}"
