"""The one way from a request to the events of its answer.

Request ─prepare─▶ Prompt(ids) ─engine─▶ ids ─detokenize, parse─▶ events ─▶ frames, further out
                                              └─ record: the finished turn goes into the ledger
"""

from collections.abc import Callable, Sequence

from dovetail.pipeline.choice_runner import Speaker, Watch
from dovetail.pipeline.concurrency import together
from dovetail.pipeline.preparation import Prepared
from dovetail.pipeline.registry import Offered, Relayed, Served
from dovetail.pipeline.sinks import Audience
from dovetail.pipeline.upstream_runner import Relay
from dovetail_model import ContextOverflow, InvalidRequest, Request, Unsupported

__all__ = ["Watch", "answer", "count_tokens", "tokens_of"]

MOST_CHOICES = 16


async def answer(
    served: Offered,
    request: Request,
    new_call_id: Callable[[], str],
    audience: Audience,
    watch: Watch | None = None,
) -> None:
    """Tells the events of an answer, by choice. Raises before the first ones; a `Failure` after."""
    voices = await _voices(served, request, new_call_id, watch or Watch())
    await together([voice.speak(audience) for voice in voices])


async def count_tokens(served: Offered, request: Request) -> int:
    """The exact number of input tokens that this request would have."""
    return await tokens_of(served).preparer.count(request)


def tokens_of(served: Offered) -> Served:
    """The model, if its tokens are known here."""
    if isinstance(served, Relayed):
        raise Unsupported(f"The tokens of {served.name} are known to its own server only.")
    return served


async def _voices(
    served: Offered, request: Request, new_call_id: Callable[[], str], watch: Watch
) -> Sequence[Speaker | Relay]:
    """One for each choice."""
    count = _choices(request)
    if isinstance(served, Relayed):
        return [Relay(served, request, new_call_id, watch, at) for at in range(count)]
    prepared = await served.preparer.prepare(request)
    watch.prepared(prepared)
    limit = _room(served, prepared)
    return [Speaker(served, prepared, new_call_id, limit, watch, at) for at in range(count)]


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
