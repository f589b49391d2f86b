"""Checks of requests in the form that Claude Code sends, which a server must accept."""

from statistics import median

from dovetail_verify.black_box.errors import require_accepted
from dovetail_verify.black_box.samples import QUESTION
from dovetail_verify.black_box.usage import make_long_text
from dovetail_verify.check import NotApplicable, check, require
from dovetail_verify.dialects import MESSAGES, TOOL_DESCRIPTION, TOOL_NAME, TOOL_PARAMETERS, Json
from dovetail_verify.exchange import HttpExchange
from dovetail_verify.target import TargetServer

BETA_HEADERS = (
    "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,"
    "prompt-caching-scope-2026-01-05,a-beta-nobody-knows-2031-01-01"
)
BILLING_LINE = "x-anthropic-billing-header: cc_version=2.1.197.{word}; cc_entrypoint=sdk-cli;"
_COUNT_TOKENS_FIELDS = ("model", "messages", "system", "tools")
_EPHEMERAL = {"type": "ephemeral"}
_TOOL = {"name": TOOL_NAME, "description": TOOL_DESCRIPTION, "input_schema": TOOL_PARAMETERS}


def _require_accepted(exchange: HttpExchange, what: str) -> str:
    return require_accepted(exchange, MESSAGES, what)


@check(
    "messages.accepts.beta_query",
    "CC-2",
    title="/v1/messages?beta=true is the same endpoint",
    why="Claude Code sends all its requests there.",
)
async def beta_query(target: TargetServer) -> str:
    body = MESSAGES.body(target.model, [QUESTION], max_tokens=16)
    return _require_accepted(await target.post("/v1/messages?beta=true", body), "?beta=true")


@check(
    "messages.accepts.claude_code",
    "CC-17",
    title="a request with all fields that Claude Code sends is accepted",
    why="Claude Code sends all of them on every turn.",
)
async def claude_code_request(target: TargetServer) -> str:
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": [_text_block(QUESTION, cached=True)]}],
        "system": [
            _text_block(BILLING_LINE.format(word="a1b")),
            _text_block("You are a coding agent.", cached=True),
            _text_block("Be brief.", cached=True),
        ],
        "tools": [
            {**_TOOL, "eager_input_streaming": True, "strict": False, "defer_loading": False}
        ],
        "metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s"}'},
        "max_tokens": 32,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    }
    headers = {
        "anthropic-beta": BETA_HEADERS,
        "x-claude-code-session-id": "5f0c7cf2-0000-4000-8000-1",
    }
    exchange = await target.post("/v1/messages?beta=true", body, headers)
    return _require_accepted(exchange, "Claude Code's own request")


@check(
    "messages.accepts.unknown",
    "CC-29",
    title="unknown betas and fields are accepted",
    why="The next version of the client sends a new field, and all requests fail.",
)
async def unknown_fields(target: TargetServer) -> str:
    body = MESSAGES.body(target.model, [QUESTION], max_tokens=16)
    body["a_field_of_tomorrow"] = {"x": [1, 2]}
    body["messages"][0]["a_field_of_tomorrow"] = True
    exchange = await target.post(MESSAGES.path, body, {"anthropic-beta": BETA_HEADERS})
    return _require_accepted(exchange, "unknown fields and betas")


@check(
    "messages.accepts.system_inside",
    "CC-18",
    title="system messages in the middle and at the end of a conversation are accepted",
    why="Claude Code sends reminders and queued user input in such messages.",
)
async def inline_system_message(target: TargetServer) -> str:
    body = MESSAGES.body(target.model, [QUESTION, "Red", "More."], max_tokens=16)
    reminder = {"role": "system", "content": "Reminder: the user prefers short replies."}
    middle, last = dict(body), dict(body)
    middle["messages"] = [body["messages"][0], reminder, *body["messages"][1:]]
    last["messages"] = [*body["messages"], reminder]
    _require_accepted(await target.post(MESSAGES.path, middle), "in the middle")
    return _require_accepted(await target.post(MESSAGES.path, last), "at the end")


@check(
    "messages.accepts.server_tools",
    "CC-24",
    title="server tools without a schema do not make a request fail",
    why="Claude Code offers its web search this way.",
)
async def server_tools(target: TargetServer) -> str:
    body = MESSAGES.body(target.model, [QUESTION], max_tokens=16)
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    exchange = await target.post(MESSAGES.path, {**body, "tools": [_TOOL, search]})
    return _require_accepted(exchange, "a web_search tool")


@check(
    "messages.accepts.replay",
    "CC-25",
    title="a tool loop is accepted as the client replays it",
    why="The second turn of every tool loop fails.",
)
async def replay(target: TargetServer) -> str:
    history = [
        {"role": "user", "content": "What is the weather in Paris and Rome?"},
        {
            "role": "assistant",
            "content": [_thinking_block("Paris first."), _tool_use_block(1), _tool_use_block(2)],
        },
        {
            "role": "user",
            "content": [_tool_result_block(2, "Rain"), _tool_result_block(1, [_text_block("Sun")])],
        },
        {"role": "user", "content": [_text_block("Continue.")]},
    ]
    body = {"model": target.model, "max_tokens": 32, "messages": history, "tools": [_TOOL]}
    exchange = await target.post(MESSAGES.path, body)
    return _require_accepted(
        exchange, "thinking and calls without text, results in a different order"
    )


@check(
    "messages.accepts.thinking_modes",
    "CC-17",
    title="every value of `thinking` is accepted",
    why="Claude Code chooses the value by the model's name and the kind of agent.",
)
async def thinking_modes(target: TargetServer) -> str:
    for thinking in (
        {"type": "adaptive"},
        {"type": "enabled", "budget_tokens": 1024},
        {"type": "disabled"},
    ):
        body = {**MESSAGES.body(target.model, [QUESTION], max_tokens=1100), "thinking": thinking}
        body |= {"temperature": 1, "stop_sequences": ["\n"]}
        _require_accepted(await target.post(MESSAGES.path, body), f"thinking {thinking['type']}")
    return "adaptive, enabled and disabled"


@check(
    "messages.accepts.keys",
    "CC-19",
    title="x-api-key and Authorization are accepted, separately and together",
    why="Either ANTHROPIC_AUTH_TOKEN or ANTHROPIC_API_KEY does not authenticate the user.",
)
async def api_key_headers(target: TargetServer) -> str:
    key = target.api_key or "none"
    body = MESSAGES.body(target.model, [QUESTION], max_tokens=16)
    bearer, plain = {"authorization": f"Bearer {key}"}, {"x-api-key": key}
    for name, headers in (
        ("Authorization only", bearer),
        ("x-api-key only", plain),
        ("both", {**bearer, **plain}),
    ):
        exchange = await target.post(MESSAGES.path, body, headers, authenticated=False)
        _require_accepted(exchange, name)
    return "each of them, and both"


@check(
    "messages.count_tokens.shape",
    "CC-22",
    title="count_tokens returns input_tokens, also with tools and without system",
    why="/context shows no data, and Claude Code reads large files without knowing their size.",
)
async def count_shape(target: TargetServer) -> str:
    body = {"model": target.model, "messages": [{"role": "user", "content": QUESTION}]}
    plain = await count_tokens(target, body)
    more = await count_tokens(target, {**body, "tools": [_TOOL]})
    require(more >= plain, f"{plain} tokens without a tool and {more} with it")
    return f"{plain} tokens, {more} with a tool"


@check(
    "messages.count_tokens.exact",
    "TK-1",
    title="count_tokens equals the usage of the same request",
    why="With an estimate, Claude Code compacts too early or exceeds the context window.",
)
async def count_exact(target: TargetServer) -> str:
    numbers = []
    for turns, more in (
        ([QUESTION], {}),
        ([QUESTION, "Red, green\n\nand blue 🎨.", "Once more, in French: ça va?"], {}),
        ([QUESTION], {"tools": [_TOOL]}),
    ):
        body = MESSAGES.body(
            target.model, turns, system=f"Number {target.new_nonce()}.", max_tokens=16
        )
        body |= more
        count = await count_tokens(
            target, {k: v for k, v in body.items() if k in _COUNT_TOKENS_FIELDS}
        )
        used = MESSAGES.usage((await target.post(MESSAGES.path, body)).require_ok()).prompt_tokens
        require(count == used, f"count_tokens returns {count}, usage reports {used}")
        numbers.append(f"{count}")
    return f"{', '.join(numbers)} tokens"


async def count_tokens(target: TargetServer, body: Json) -> int:
    """Return the result of count_tokens. The check does not apply if it is not served."""
    exchange = await target.post("/v1/messages/count_tokens?beta=true", body)
    if exchange.status in (404, 405, 501):
        raise NotApplicable(f"API not served: count_tokens returned {exchange.status}")
    count = exchange.require_ok().json.get("input_tokens")
    require(isinstance(count, int), f"input_tokens is {count!r}")
    number: int = count
    return number


@check(
    "messages.cache.excluded",
    "TK-3",
    title="input_tokens excludes the cached tokens",
    why="Claude Code adds both counts, so the context looks twice as full and is compacted early.",
)
async def cached_tokens_excluded(target: TargetServer) -> str:
    body = MESSAGES.body(
        target.model, [QUESTION], system=make_long_text(target, 500), max_tokens=16
    )
    count = await count_tokens(target, {k: v for k, v in body.items() if k in _COUNT_TOKENS_FIELDS})
    await target.post(MESSAGES.path, body)
    used = MESSAGES.usage((await target.post(MESSAGES.path, body)).require_ok())
    if not used.cached_tokens:
        raise NotApplicable("usage reports no cached tokens")
    # This check looks for double counting only; TK-1 covers an inexact count_tokens.
    require(
        used.prompt_tokens < count + used.cached_tokens / 2,
        f"input and cached tokens add up to {used.prompt_tokens}, expected {count}",
    )
    return f"{used.cached_tokens} of {used.prompt_tokens} tokens cached"


def _text_block(text: str, *, cached: bool = False) -> Json:
    return {"type": "text", "text": text, **({"cache_control": _EPHEMERAL} if cached else {})}


def _thinking_block(text: str) -> Json:
    return {"type": "thinking", "thinking": text, "signature": "c2lnbmVkIGVsc2V3aGVyZQ=="}


def _tool_use_block(number: int) -> Json:
    return {
        "type": "tool_use",
        "id": f"toolu_v{number}",
        "name": TOOL_NAME,
        "input": {"city": f"{number}"},
    }


def _tool_result_block(number: int, content: object) -> Json:
    return {"type": "tool_result", "tool_use_id": f"toolu_v{number}", "content": content}


CHECKS = (
    beta_query,
    claude_code_request,
    unknown_fields,
    inline_system_message,
    server_tools,
    replay,
    thinking_modes,
    api_key_headers,
    count_shape,
    count_exact,
    cached_tokens_excluded,
)


_ATTEMPTS = 3
_PREFIX_TOKENS = 1500


@check(
    "messages.cache.billing_line",
    "TK-6",
    title="a varying x-anthropic-billing-header line does not break the cached prefix",
    why="Every session and subagent of Claude Code re-prefills its complete prompt.",
)
async def billing_line(target: TargetServer) -> str:
    guide = make_long_text(target, _PREFIX_TOKENS)
    await target.post(MESSAGES.path, _billing_request(target, guide, "a1"))
    same = MESSAGES.usage(
        (await target.post(MESSAGES.path, _billing_request(target, guide, "a1"))).require_ok()
    )
    if not same.cached_tokens or same.cached_tokens < same.prompt_tokens / 2:
        return await _judge_by_latency(target)
    varied = MESSAGES.usage(
        (await target.post(MESSAGES.path, _billing_request(target, guide, "z9"))).require_ok()
    )
    cached = varied.cached_tokens or 0
    note = f"{cached} tokens cached with a different line, {same.cached_tokens} with the same line"
    require(cached >= same.cached_tokens / 2, note)
    return note


async def _judge_by_latency(target: TargetServer) -> str:
    """Compare the time to first token, if the server does not report cached tokens.

    A busy machine delays responses, but cannot make them faster: the quickest cold prompt must be
    slower than the usual warm one, which is not the effect of a few delays.
    """
    cold, warm, varied = [], [], []
    for _ in range(_ATTEMPTS):
        guide = make_long_text(target, _PREFIX_TOKENS)
        cold.append(await _time_to_first_block(target, guide, "a1"))
        warm.append(await _time_to_first_block(target, guide, "a1"))
        varied.append(await _time_to_first_block(target, guide, "z9"))
    slow, quick, found = min(cold), median(warm), min(varied)
    if quick > 0.6 * slow:
        raise NotApplicable(
            "neither cached tokens nor the time to first token indicate a prefix cache"
        )
    note = (
        f"first event after {found:.2f} s with a different line, {quick:.2f} s with the same line"
    )
    require(found < (slow + quick) / 2, f"{note}, {slow:.2f} s without cache")
    return note


async def _time_to_first_block(target: TargetServer, guide: str, word: str) -> float:
    exchange = await target.post(
        MESSAGES.path, MESSAGES.with_streaming(_billing_request(target, guide, word))
    )
    starts = [
        frame.elapsed_seconds
        for frame in exchange.require_ok().frames
        if frame.type == "content_block_start"
    ]
    return starts[0] if starts else exchange.total_seconds


def _billing_request(target: TargetServer, guide: str, word: str) -> Json:
    body = MESSAGES.body(target.model, [QUESTION], max_tokens=16)
    line = {"type": "text", "text": BILLING_LINE.format(word=word)}
    rest = {"type": "text", "text": guide, "cache_control": {"type": "ephemeral"}}
    return {**body, "system": [line, rest]}


BILLING_CHECKS = (billing_line,)
