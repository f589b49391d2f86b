"""The number of input tokens of a request to an upstream, before the upstream reports it.

Streams of the Messages API begin with this number. Most upstreams report it only at the end.
"""

import asyncio
from collections.abc import Iterable, Iterator

import msgspec

from dovetail.pipeline.observer import RequestObserver
from dovetail.pipeline.registry import UpstreamModel
from dovetail_model import (
    Block,
    DocumentBlock,
    DovetailError,
    Event,
    ImageBlock,
    ReasoningBlock,
    Request,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
    Usage,
)

BYTES_PER_TOKEN = 4
IMAGE_TOKENS = 1000
MESSAGE_TOKENS = 4  # of the markup around a message
#: Reported if the first number of input tokens is an estimate.
ESTIMATED = "input_tokens_estimated"


class InputCounter:
    """Counts the input tokens of one request while the upstream generates.

    Only streams of the Messages API show the number before the end; for others it is not counted.
    """

    def __init__(self, entry: UpstreamModel, request: Request, observer: RequestObserver) -> None:
        self._entry = entry
        self._request = request
        self._observer = observer
        self._visible = request.stream and request.client.api == "messages"
        self._count: asyncio.Task[int | None] | None = None
        self.tokens = 0  # the number with which the response started

    def start(self) -> None:
        """Start counting with the tokenizer of the model, if there is one."""
        if self._visible and self._entry.tokenizer is not None:
            self._count = asyncio.create_task(self._count_exactly())

    async def first_usage(self, batch: Iterable[Event] = ()) -> list[Event]:
        """Return the usage with which the response starts; nothing if no client would see it."""
        if not self._visible:
            return []
        counted = await self._count if self._count is not None else None
        reported = (event.input_tokens for event in batch if isinstance(event, Usage))
        self.tokens = counted or next(reported, 0)
        if not self.tokens:
            self.tokens = estimate_input_tokens(self._request)
            self._observer.on_note(ESTIMATED)
        return [Usage(input_tokens=self.tokens)]

    def stop(self) -> None:
        if self._count is not None:
            self._count.cancel()

    async def _count_exactly(self) -> int | None:
        """Count with the model's template. Returns None if it cannot render the request."""
        tokenizer, window = self._entry.tokenizer, self._entry.context_length - 1
        try:
            return None if tokenizer is None else await tokenizer.count(self._request, window)
        except DovetailError:
            return None


def estimate_input_tokens(request: Request) -> int:
    """Estimate the prompt's tokens from the size of its texts."""
    size = sum(_sizes(request.system)) + sum(map(_tool_size, request.tools))
    size += sum(sum(_sizes(turn.blocks)) for turn in request.turns)
    return size // BYTES_PER_TOKEN + MESSAGE_TOKENS * (len(request.turns) + 1)


def _sizes(blocks: Iterable[Block]) -> Iterator[int]:
    for block in blocks:
        match block:
            case TextBlock(text=text) | ReasoningBlock(text=text):
                yield len(text.encode("utf-8", "replace"))
            case ToolCallBlock(name=name, arguments=arguments):
                yield len(name) + len(arguments.encode("utf-8", "replace"))
            case ToolResultBlock(blocks=inner):
                yield from _sizes(inner)
            case DocumentBlock(text=str(text)):
                yield len(text.encode("utf-8", "replace"))
            case ImageBlock():
                yield IMAGE_TOKENS * BYTES_PER_TOKEN


def _tool_size(tool: ToolSpec) -> int:
    text = f"{tool.model_name} {tool.description}"
    return len(text.encode("utf-8", "replace")) + len(msgspec.json.encode(tool.model_parameters))
