"""Run a request and emit the events of its response.

Request ─prepare─▶ Prompt(ids) ─engine─▶ ids ─detokenize, parse─▶ events ─▶ frames, further out
                                              └─ record: the finished turn goes into the ledger
"""

from collections.abc import Callable, Sequence

from dovetail.pipeline.choice_runner import ChoiceRunner
from dovetail.pipeline.concurrency import run_all
from dovetail.pipeline.observer import RequestObserver
from dovetail.pipeline.panics import convert_panics
from dovetail.pipeline.preparation import PreparedRequest
from dovetail.pipeline.registry import ModelEntry, TokenModel, UpstreamModel
from dovetail.pipeline.sinks import EventSink
from dovetail.pipeline.upstream_runner import UpstreamRunner
from dovetail_model import ContextOverflow, InvalidRequest, Request, Unsupported

__all__ = ["RequestObserver", "count_tokens", "require_token_model", "run_request"]

MAX_CHOICES = 16


async def run_request(
    entry: ModelEntry,
    request: Request,
    new_call_id: Callable[[], str],
    sink: EventSink,
    observer: RequestObserver | None = None,
) -> None:
    """Emit the events of all choices. Errors after the first event are emitted as `Failure`."""
    with convert_panics():
        runners = await _create_runners(entry, request, new_call_id, observer or RequestObserver())
        try:
            await run_all([runner.run(sink) for runner in runners])
        finally:
            if request.identity.final and isinstance(entry, TokenModel):
                entry.preparer.release_session(request.identity)


async def count_tokens(entry: ModelEntry, request: Request) -> int:
    """Count the input tokens of a request exactly."""
    return await require_token_model(entry).preparer.count_tokens(request)


def require_token_model(entry: ModelEntry) -> TokenModel:
    """Return the model if it is a `TokenModel`, else raise `Unsupported`."""
    if isinstance(entry, UpstreamModel):
        raise Unsupported(f"Only the upstream server of {entry.name} has access to its tokens.")
    return entry


async def _create_runners(
    entry: ModelEntry, request: Request, new_call_id: Callable[[], str], observer: RequestObserver
) -> Sequence[ChoiceRunner | UpstreamRunner]:
    """Create a runner for each choice."""
    count = _choice_count(request)
    entry.check(request)
    if isinstance(entry, UpstreamModel):
        request, notes = await entry.document_reader.read(request)
        for note in notes:
            observer.on_note(note)
        return [UpstreamRunner(entry, request, new_call_id, observer, at) for at in range(count)]
    prepared = await entry.preparer.prepare(request, max_tokens=entry.context_length - 1)
    observer.on_prepared(prepared)
    limit = _max_output_tokens(entry, prepared)
    return [ChoiceRunner(entry, prepared, new_call_id, limit, observer, at) for at in range(count)]


def _choice_count(request: Request) -> int:
    if request.sampling.n > MAX_CHOICES:
        message = f"`n` must be at most {MAX_CHOICES}, got {request.sampling.n}"
        raise InvalidRequest(message, param="n")
    return max(1, request.sampling.n)


def _max_output_tokens(entry: TokenModel, prepared: PreparedRequest) -> int:
    """Return the tokens left for output. Raises ContextOverflow if the prompt leaves none."""
    length, window = len(prepared.prompt.ids), entry.context_length
    if length >= window:
        raise ContextOverflow(
            f"prompt is too long: {length} tokens > {window - 1} maximum", param="messages"
        )
    return window - length
