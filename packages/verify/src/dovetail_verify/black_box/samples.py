"""Sample responses that several checks inspect. Each is requested once."""

from collections.abc import AsyncIterator

from dovetail_verify.check import CheckFailed, NotApplicable
from dovetail_verify.dialects import (
    MESSAGES,
    TOOL_CALL_MAX_TOKENS,
    TOOL_NAME,
    TOOL_QUESTION,
    Dialect,
    Json,
)
from dovetail_verify.exchange import HttpExchange
from dovetail_verify.target import TargetServer

QUESTION = "Name three colours, one on each line."
MULTIBYTE_TEXT = "🦊 नमस्ते 你好 👩‍👩‍👧 ü 🇫🇷"
_TRUNCATED_REASONS = ("max_tokens", "length", "max_output_tokens", "model_context_window_exceeded")


async def sample_response(target: TargetServer, dialect: Dialect) -> HttpExchange:
    """Return a plain non-streaming response."""

    async def make(server: TargetServer) -> HttpExchange:
        return await server.post(dialect.path, dialect.body(server.model, [QUESTION]))

    return (await target.memoize(f"{dialect.api} whole", make)).require_ok()


async def sample_stream(target: TargetServer, dialect: Dialect) -> HttpExchange:
    """Return the same response as a stream."""

    async def make(server: TargetServer) -> HttpExchange:
        body = dialect.with_streaming(dialect.body(server.model, [QUESTION]))
        return await server.post(dialect.path, body)

    return (await target.memoize(f"{dialect.api} stream", make)).require_ok()


async def sample_multibyte_stream(target: TargetServer, dialect: Dialect) -> HttpExchange:
    """Return a stream with characters that consist of several tokens."""

    async def make(server: TargetServer) -> HttpExchange:
        body = dialect.body(server.model, [f"Repeat exactly: {MULTIBYTE_TEXT}"], max_tokens=96)
        return await server.post(dialect.path, dialect.with_streaming(body))

    return (await target.memoize(f"{dialect.api} letters", make)).require_ok()


async def sample_tool_call(
    target: TargetServer, dialect: Dialect, *, streamed: bool = True
) -> HttpExchange:
    """Return a response with a complete call. Checks do not apply if the model makes no call."""

    async def make(server: TargetServer) -> HttpExchange:
        return await request_tool_call(server, dialect, streamed=streamed)

    form = "streaming" if streamed else "non-streaming"
    exchange = (await target.memoize(f"{dialect.api} call {form}", make)).require_ok()
    if not dialect.tool_calls(exchange):
        raise NotApplicable(f"the model made no call, although tool_choice names {TOOL_NAME}")
    if is_truncated(dialect, exchange):
        raise NotApplicable(f"the call was truncated by the limit of {TOOL_CALL_MAX_TOKENS} tokens")
    return exchange


async def sample_streams(target: TargetServer, dialect: Dialect) -> AsyncIterator[HttpExchange]:
    """Yield a plain stream, then one with a call if the model makes one.

    Other checks report a missing call. A check must inspect each stream before it requests the
    next one, because the last exchange is its evidence.
    """
    yield await sample_stream(target, dialect)
    try:
        exchange = await sample_tool_call(target, dialect)
    except (CheckFailed, NotApplicable):
        return
    yield exchange


async def request_tool_call(
    target: TargetServer, dialect: Dialect, *, streamed: bool = True
) -> HttpExchange:
    """Request a tool call with tool_choice, or without it if the server rejects tool_choice."""
    body = dialect.with_tool(
        dialect.body(target.model, [f"{TOOL_QUESTION} ({target.new_nonce()})"])
    )
    body = dialect.with_streaming(body) if streamed else body
    exchange = await target.post(dialect.path, body)
    if exchange.status >= 400:
        body.pop("tool_choice")
        exchange = await target.post(dialect.path, body)
    return exchange


def is_truncated(dialect: Dialect, exchange: HttpExchange) -> bool:
    """Whether the response was truncated by a limit."""
    return dialect.finish_reason(exchange) in _TRUNCATED_REASONS


async def sample_reasoning(target: TargetServer) -> tuple[HttpExchange, list[Json]]:
    """Return a Messages stream with thinking enabled, and its thinking blocks."""

    async def make(server: TargetServer) -> HttpExchange:
        body = MESSAGES.body(server.model, [QUESTION], max_tokens=2048)
        del body["temperature"]  # as Anthropic's API requires for thinking
        thinking = {"type": "enabled", "budget_tokens": 1024}
        return await server.post(MESSAGES.path, {**body, "thinking": thinking, "stream": True})

    exchange = (await target.memoize("messages reasoning", make)).require_ok()
    blocks = [b for b in MESSAGES.message(exchange)["content"] if b.get("type") == "thinking"]
    if not blocks:
        raise NotApplicable("the model generated no reasoning")
    return exchange, blocks
