"""The one way from a request to the events of its answer.

Request ─prepare─▶ Prompt(ids) ─engine─▶ ids ─detokenize, parse─▶ events ─▶ frames, further out
                                              └─ record: the finished turn goes into the ledger
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from dovetail.preparation import Prepared
from dovetail.service import Served
from dovetail.speaker import Speaker, Watch
from dovetail.streams import merged
from dovetail_model import ContextOverflow, Event, InvalidRequest, Request

__all__ = ["Answer", "Watch", "answer", "count_tokens"]

MOST_CHOICES = 16
Answer = AsyncGenerator[tuple[int, list[Event]]]


async def answer(
    served: Served, request: Request, new_call_id: Callable[[], str], watch: Watch | None = None
) -> Answer:
    """The events of an answer, by choice. Raises before the first ones, is a `Failure` after."""
    watch = watch or Watch()
    prepared = await served.preparer.prepare(request)
    watch.prepared(prepared)
    limit = _room(served, prepared)
    speakers = [
        Speaker(served, prepared, new_call_id, limit, watch, choice)
        for choice in range(_choices(request))
    ]
    async with aclosing(merged([speaker.speak() for speaker in speakers])) as batches:
        async for choice, events in batches:
            yield choice, events


async def count_tokens(served: Served, request: Request) -> int:
    """The exact number of input tokens that this request would have."""
    return await served.preparer.count(request)


def _choices(request: Request) -> int:
    if request.sampling.n > MOST_CHOICES:
        raise InvalidRequest(f"n: at most {MOST_CHOICES} choices", param="n")
    return max(1, request.sampling.n)


def _room(served: Served, prepared: Prepared) -> int:
    """How many tokens the answer may have. Raises where the prompt leaves none."""
    length, window = len(prepared.prompt.ids), served.context_length
    if length >= window:
        raise ContextOverflow(
            f"prompt is too long: {length} tokens > {window - 1} maximum", param="messages"
        )
    return window - length
