"""Compaction: replace a history by a summary that the model itself writes.

The summary is requested with the unchanged history and an instruction at its end, so that the
engine reuses the prefix of the conversation.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from dovetail.engines.engine import to_public_error
from dovetail.pipeline.context_editor import default_trigger
from dovetail.pipeline.sinks import CallbackSink, EventSink
from dovetail_model import (
    Compact,
    Compaction,
    DovetailError,
    EditTrigger,
    Finish,
    OutputFormat,
    Request,
    TextBlock,
    ToolChoice,
    Turn,
    Usage,
    error_from_failure,
)
from dovetail_protocols import SUMMARY_INSTRUCTION, SUMMARY_PREFACE

DEFAULT_TRIGGER = EditTrigger("input_tokens", 150_000)
MIN_SUMMARY_TOKENS = 4096  # a lower `max_tokens` of the request would truncate the summary
MAX_REPEATED_CHARS = 20_000  # a longer user message is left to the summary
_NEWEST_MESSAGE = "\n\nThe newest message of the user:\n\n"

RunRequest = Callable[[Request, EventSink], Awaitable[None]]
"""Runs a request and emits its events to a sink."""


def find_compact_edit(request: Request) -> Compact | None:
    """Return the edit that requests automatic compaction."""
    edits = (edit for edit in request.context.edits or () if isinstance(edit, Compact))
    return next(edits, None)


def without_compaction(request: Request) -> Request:
    """Return the request without its wish for compaction."""
    edits = request.context.edits
    if edits is not None:
        edits = tuple(edit for edit in edits if not isinstance(edit, Compact))
    context = msgspec.structs.replace(request.context, edits=edits, summarize=None)
    return msgspec.structs.replace(request, context=context)


def is_triggered(edit: Compact, prompt_tokens: int, window: int) -> bool:
    """Return whether a prompt is long enough for compaction."""
    threshold = edit.trigger_tokens
    if threshold is None:
        threshold = default_trigger(DEFAULT_TRIGGER, window).value
    return prompt_tokens > threshold


class Compactor:
    """Compacts the history of one request, and emits the summary to the client.

    `start_timeout_seconds`: the time after which the response starts without the summary.
    """

    def __init__(self, run: RunRequest, sink: EventSink, start_timeout_seconds: float) -> None:
        self._run = run
        self._sink = sink
        self._start_timeout_seconds = start_timeout_seconds
        self._started = False  # whether any event was emitted

    async def summarize(self, request: Request) -> None:
        """Emit a response that contains only the summary."""
        await self._guard(self._summarize(request))

    async def continue_compacted(self, request: Request, edit: Compact) -> None:
        """Emit the summary and, unless the edit pauses, the response to the compacted history."""
        await self._guard(self._continue_compacted(request, edit))

    async def _summarize(self, request: Request) -> None:
        await self._emit_summary(request, request.context.summarize or "")
        self._sink.write(0, [Finish("compaction")])

    async def _continue_compacted(self, request: Request, edit: Compact) -> None:
        appendix = "" if edit.pause else _newest_message(request)
        summary = await self._emit_summary(request, edit.instructions, appendix)
        if edit.pause:
            self._sink.write(0, [Finish("compaction")])
            return
        request = without_compaction(request)
        if summary is not None:
            turn = Turn("user", (TextBlock(SUMMARY_PREFACE + summary),))
            request = msgspec.structs.replace(request, turns=(turn,))
        await self._run(request, self._sink)

    async def _emit_summary(
        self, request: Request, instructions: str, appendix: str = ""
    ) -> str | None:
        """Generate and emit the summary. Returns None if the model wrote none."""
        slow_start = asyncio.get_running_loop().call_later(self._start_timeout_seconds, self._start)
        collected = CallbackSink(lambda event: None)
        try:
            await self._run(summary_request(request, instructions), collected)
        finally:
            slow_start.cancel()
        message = collected.message()
        if message.failure is not None:
            raise error_from_failure(message.failure)
        text = "".join(block.text for block in message.blocks if isinstance(block, TextBlock))
        summary = text.strip() + appendix if text.strip() else None
        self._start()
        self._sink.write(0, [Compaction(summary, message.usage)])
        return summary

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._sink.write(0, [Usage()])

    async def _guard(self, work: Awaitable[None]) -> None:
        """Emit errors as a `Failure` once the response has started."""
        try:
            await work
        except DovetailError as error:
            if not self._started:
                raise
            self._sink.write(0, [to_public_error(error).to_failure()])


def summary_request(request: Request, instructions: str) -> Request:
    """Return the request for a summary. Its prompt begins like that of the request."""
    text = instructions or SUMMARY_INSTRUCTION
    sampling, limit = request.sampling, request.sampling.max_tokens
    return msgspec.structs.replace(
        without_compaction(request),
        turns=(*request.turns, Turn("user", (TextBlock(text),))),
        tool_choice=ToolChoice("none"),
        output=OutputFormat(),
        sampling=msgspec.structs.replace(
            sampling,
            max_tokens=None if limit is None else max(limit, MIN_SUMMARY_TOKENS),
            stop=(),
            n=1,
        ),
        stream=False,
    )


def _newest_message(request: Request) -> str:
    """Return the newest user message, which a summary may miss, as an addition to the summary."""
    last = request.turns[-1] if request.turns else Turn("user")
    texts = [block.text for block in last.blocks if isinstance(block, TextBlock)]
    if last.role != "user" or len(texts) != len(last.blocks) or not texts:
        return ""
    text = "\n".join(texts)
    return _NEWEST_MESSAGE + text if len(text) <= MAX_REPEATED_CHARS else ""
