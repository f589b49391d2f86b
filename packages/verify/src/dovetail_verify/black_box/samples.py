"""Answers that several checks look at. Each is asked for once."""

from collections.abc import AsyncIterator

from dovetail_verify.check import Failed, NotApplicable
from dovetail_verify.dialects import ASKED, CALL_LIMIT, MESSAGES, NAME, Dialect, Json
from dovetail_verify.exchange import Exchange
from dovetail_verify.target import Stage

QUESTION = "Name three colours, one on each line."
LETTERS = "🦊 नमस्ते 你好 👩‍👩‍👧 ü 🇫🇷"
_LIMITS = ("max_tokens", "length", "max_output_tokens", "model_context_window_exceeded")


async def whole(stage: Stage, dialect: Dialect) -> Exchange:
    """A plain answer in one piece."""

    async def make(stage: Stage) -> Exchange:
        return await stage.post(dialect.path, dialect.body(stage.model, [QUESTION]))

    return (await stage.once(f"{dialect.api} whole", make)).ok()


async def stream(stage: Stage, dialect: Dialect) -> Exchange:
    """The same answer as a stream."""

    async def make(stage: Stage) -> Exchange:
        body = dialect.streamed(dialect.body(stage.model, [QUESTION]))
        return await stage.post(dialect.path, body)

    return (await stage.once(f"{dialect.api} stream", make)).ok()


async def strange_letters(stage: Stage, dialect: Dialect) -> Exchange:
    """A stream that was asked for letters of more than one token."""

    async def make(stage: Stage) -> Exchange:
        body = dialect.body(stage.model, [f"Repeat exactly: {LETTERS}"], limit=96)
        return await stage.post(dialect.path, dialect.streamed(body))

    return (await stage.once(f"{dialect.api} letters", make)).ok()


async def called(stage: Stage, dialect: Dialect, *, streamed: bool = True) -> Exchange:
    """An answer with a complete call in it. Where the model makes none, checks do not apply."""

    async def make(stage: Stage) -> Exchange:
        return await ask_for_call(stage, dialect, streamed=streamed)

    form = "streamed" if streamed else "whole"
    exchange = (await stage.once(f"{dialect.api} call {form}", make)).ok()
    if not dialect.calls(exchange):
        raise NotApplicable(f"the model made no call, though tool_choice names {NAME}")
    if was_cut(dialect, exchange):
        raise NotApplicable(f"the call was cut by the limit of {CALL_LIMIT} tokens")
    return exchange


async def streams(stage: Stage, dialect: Dialect) -> AsyncIterator[Exchange]:
    """A plain stream, then one with a call; where none can be had, other checks say so.

    Each is to be judged before the next is asked for: what came last is a check's evidence.
    """
    yield await stream(stage, dialect)
    try:
        exchange = await called(stage, dialect)
    except (Failed, NotApplicable):
        return
    yield exchange


async def ask_for_call(stage: Stage, dialect: Dialect, *, streamed: bool = True) -> Exchange:
    """A request with a tool that has to be called; if that is refused, that may be."""
    body = dialect.with_tool(dialect.body(stage.model, [f"{ASKED} ({stage.unique()})"]))
    body = dialect.streamed(body) if streamed else body
    exchange = await stage.post(dialect.path, body)
    if exchange.status >= 400:
        body.pop("tool_choice")
        exchange = await stage.post(dialect.path, body)
    return exchange


def was_cut(dialect: Dialect, exchange: Exchange) -> bool:
    """Whether the answer ended at a limit."""
    return dialect.end(exchange) in _LIMITS


async def thought(stage: Stage) -> tuple[Exchange, list[Json]]:
    """A Messages stream that thinks, and its thinking blocks."""

    async def make(stage: Stage) -> Exchange:
        body = MESSAGES.body(stage.model, [QUESTION], limit=2048)
        del body["temperature"]  # Anthropic's own rule for thinking
        thinking = {"type": "enabled", "budget_tokens": 1024}
        return await stage.post(MESSAGES.path, {**body, "thinking": thinking, "stream": True})

    exchange = (await stage.once("messages thought", make)).ok()
    blocks = [b for b in MESSAGES.message(exchange)["content"] if b.get("type") == "thinking"]
    if not blocks:
        raise NotApplicable("the model did not think")
    return exchange, blocks
