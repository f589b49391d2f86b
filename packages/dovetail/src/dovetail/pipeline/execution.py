"""Run a request and emit the events of its response.

Request ─prepare─▶ Prompt(ids) ─engine─▶ ids ─detokenize, parse─▶ events ─▶ frames, further out
                                              └─ record: the finished turn goes into the ledger
"""

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dovetail.models.thinking import ignores_effort
from dovetail.pipeline.choice_runner import ChoiceRunner
from dovetail.pipeline.compaction import (
    Compactor,
    find_compact_edit,
    is_triggered,
    summary_request,
    without_compaction,
)
from dovetail.pipeline.concurrency import run_all
from dovetail.pipeline.observer import RequestObserver
from dovetail.pipeline.panics import convert_panics
from dovetail.pipeline.recovering_runner import RecoveringRunner
from dovetail.pipeline.registry import ModelEntry, PromptTokenizer, TokenModel, UpstreamModel
from dovetail.pipeline.server_tool_loop import ServerToolLoop
from dovetail.pipeline.sinks import EventSink
from dovetail.pipeline.upstream_runner import UpstreamRunner
from dovetail.server_tools.result_room import ContextWindow
from dovetail.server_tools.runner import ServerTools
from dovetail_model import Compact, ContextOverflow, InvalidRequest, Request, Unsupported

__all__ = [
    "RequestObserver",
    "count_tokens",
    "render_prompt",
    "require_token_model",
    "require_tokenizer",
    "run_request",
]

MAX_CHOICES = 16


async def run_request(
    entry: ModelEntry,
    request: Request,
    new_call_id: Callable[[], str],
    sink: EventSink,
    observer: RequestObserver | None = None,
    server_tools: ServerTools | None = None,
) -> None:
    """Emit the events of all choices. Errors after the first event are emitted as `Failure`."""
    observer = observer or RequestObserver()

    async def run_turn(request: Request, sink: EventSink, observer: RequestObserver) -> None:
        runners = await _create_runners(entry, request, new_call_id, observer)
        await run_all([runner.run(sink) for runner in runners])

    async def run(request: Request, sink: EventSink) -> None:
        if request.server_tools and server_tools is not None:
            window = _context_window(entry)
            await ServerToolLoop(run_turn, server_tools, window, sink, observer).run(request)
        else:
            await run_turn(request, sink, observer)

    with convert_panics():
        try:
            edit = find_compact_edit(request)
            compactor = Compactor(run, sink, entry.start_timeout_seconds)
            if request.context.summarize is not None:
                await compactor.summarize(request)
            elif edit is not None and await _needs_compaction(entry, request, edit, observer):
                await compactor.continue_compacted(request, edit)
            else:
                await run(request, sink)
        finally:
            if request.identity.final and isinstance(entry, TokenModel):
                entry.preparer.release_session(request.identity)


def _context_window(entry: ModelEntry) -> ContextWindow:
    """Return the context window of a model, whose tokens are estimated without a tokenizer."""
    source = entry.tokenizer if isinstance(entry, UpstreamModel) else entry
    if source is None:
        return ContextWindow(entry.context_length)
    encode = source.model.tokenizer.encode
    return ContextWindow(entry.context_length, lambda text: len(encode(text)))


async def _needs_compaction(
    entry: ModelEntry, request: Request, edit: Compact, observer: RequestObserver
) -> bool:
    if isinstance(entry, UpstreamModel) and entry.tokenizer is None:
        observer.on_note("ignored:context_management.edits")  # its tokens cannot be counted
        return False
    window = entry.context_length - 1
    preparer = require_tokenizer(entry).preparer
    tokens = await preparer.count_tokens(without_compaction(request), window)
    return is_triggered(edit, tokens, window)


class TokenCount(NamedTuple):
    """The tokens of a prompt; `original` without context edits, if the request has any."""

    tokens: int
    original: int | None = None


async def count_tokens(entry: ModelEntry, request: Request) -> TokenCount:
    """Count the input tokens of a request with the tokenizer and the template of the model."""
    preparer = require_tokenizer(entry).preparer
    if isinstance(entry, TokenModel):
        request.client.reject_unsupported()
    tokens = await preparer.count_tokens(request, entry.context_length - 1)
    if not request.context.edits:
        return TokenCount(tokens)
    return TokenCount(tokens, await preparer.count_tokens(request, edit=False))


async def render_prompt(entry: TokenModel, request: Request) -> "array[int]":
    """Return the prompt that the engine would receive first for a request, without effects.

    Where compaction would precede the response, this is the prompt of the summary.
    """
    _choice_count(request)
    entry.check(request)
    edit, instructions = find_compact_edit(request), request.context.summarize
    with convert_panics():
        if instructions is not None:
            request = summary_request(request, instructions)
        elif edit is not None and await _needs_compaction(entry, request, edit, RequestObserver()):
            request = summary_request(request, edit.instructions)
        ids = await entry.preparer.render(request, entry.context_length - 1)
    _require_room(entry, len(ids))
    return ids


def require_token_model(entry: ModelEntry) -> TokenModel:
    """Return the model if it is a `TokenModel`, else raise `Unsupported`."""
    if isinstance(entry, UpstreamModel):
        raise Unsupported(f"Only the upstream server of {entry.name} has access to its tokens.")
    return entry


def require_tokenizer(entry: ModelEntry) -> TokenModel | PromptTokenizer:
    """Return what counts the tokens of a model, else raise `Unsupported`."""
    if not isinstance(entry, UpstreamModel):
        return entry
    if entry.tokenizer is None:
        raise Unsupported(
            f"Only the upstream server of {entry.name} has access to its tokens: start the server "
            "with --tokenizer to count them."
        )
    return entry.tokenizer


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
    if ignores_effort(request.thinking, entry.model.profile):
        observer.on_note("effort_ignored")
    prepared = await entry.preparer.prepare(request, max_tokens=entry.context_length - 1)
    observer.on_prepared(prepared)
    limit = _require_room(entry, len(prepared.prompt.ids))
    runner = RecoveringRunner if entry.recovery.kinds else ChoiceRunner
    return [runner(entry, prepared, new_call_id, limit, observer, at) for at in range(count)]


def _choice_count(request: Request) -> int:
    if request.sampling.n > MAX_CHOICES:
        message = f"`n` must be at most {MAX_CHOICES}, got {request.sampling.n}"
        raise InvalidRequest(message, param="n")
    return max(1, request.sampling.n)


def _require_room(entry: TokenModel, prompt_tokens: int) -> int:
    """Return the tokens left for output. Raises ContextOverflow if the prompt leaves none."""
    window = entry.context_length
    if prompt_tokens >= window:
        raise ContextOverflow(
            f"prompt is too long: {prompt_tokens} tokens > {window - 1} maximum", param="messages"
        )
    return window - prompt_tokens
