"""Requests as Claude Code sends them: none of these may be refused."""

from dovetail_verify.black_box.refusals import accepted
from dovetail_verify.black_box.samples import QUESTION
from dovetail_verify.black_box.usage import long_text
from dovetail_verify.check import NotApplicable, check, require
from dovetail_verify.dialects import DESCRIPTION, MESSAGES, NAME, PARAMETERS, Json
from dovetail_verify.exchange import Exchange
from dovetail_verify.target import Stage

BETAS = (
    "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,"
    "prompt-caching-scope-2026-01-05,a-beta-nobody-knows-2031-01-01"
)
BILLING = "x-anthropic-billing-header: cc_version=2.1.197.{word}; cc_entrypoint=sdk-cli;"
_COUNTED = ("model", "messages", "system", "tools")
_EPHEMERAL = {"type": "ephemeral"}
_TOOL = {"name": NAME, "description": DESCRIPTION, "input_schema": PARAMETERS}


def _accepted(exchange: Exchange, what: str) -> str:
    return accepted(exchange, MESSAGES, what)


@check(
    "messages.accepts.beta_query",
    "CC-2",
    title="/v1/messages?beta=true is the same address",
    why="Claude Code asks nowhere else.",
)
async def beta_query(stage: Stage) -> str:
    body = MESSAGES.body(stage.model, [QUESTION], limit=16)
    return _accepted(await stage.post("/v1/messages?beta=true", body), "?beta=true")


@check(
    "messages.accepts.claude_code",
    "CC-17",
    title="a request with everything that Claude Code sends is accepted",
    why="Claude Code sends all of it on every turn.",
)
async def claude_code(stage: Stage) -> str:
    body = {
        "model": stage.model,
        "messages": [{"role": "user", "content": [_text(QUESTION, cached=True)]}],
        "system": [
            _text(BILLING.format(word="a1b")),
            _text("You are a coding agent.", cached=True),
            _text("Be brief.", cached=True),
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
    headers = {"anthropic-beta": BETAS, "x-claude-code-session-id": "5f0c7cf2-0000-4000-8000-1"}
    exchange = await stage.post("/v1/messages?beta=true", body, headers)
    return _accepted(exchange, "Claude Code's own request")


@check(
    "messages.accepts.unknown",
    "CC-29",
    title="unknown betas and fields are accepted",
    why="The next version of a client sends a new field, and nothing works any more.",
)
async def unknown(stage: Stage) -> str:
    body = MESSAGES.body(stage.model, [QUESTION], limit=16)
    body["a_field_of_tomorrow"] = {"x": [1, 2]}
    body["messages"][0]["a_field_of_tomorrow"] = True
    exchange = await stage.post(MESSAGES.path, body, {"anthropic-beta": BETAS})
    return _accepted(exchange, "unknown fields and betas")


@check(
    "messages.accepts.system_inside",
    "CC-18",
    title="system messages in the middle and at the end of a conversation are accepted",
    why="Claude Code puts reminders, and what the user typed meanwhile, into such messages.",
)
async def system_inside(stage: Stage) -> str:
    body = MESSAGES.body(stage.model, [QUESTION, "Red", "More."], limit=16)
    reminder = {"role": "system", "content": "Reminder: the user prefers short answers."}
    middle, last = dict(body), dict(body)
    middle["messages"] = [body["messages"][0], reminder, *body["messages"][1:]]
    last["messages"] = [*body["messages"], reminder]
    _accepted(await stage.post(MESSAGES.path, middle), "in the middle")
    return _accepted(await stage.post(MESSAGES.path, last), "at the end")


@check(
    "messages.accepts.server_tools",
    "CC-24",
    title="server tools without a schema do not make a request fail",
    why="Claude Code's web search is offered this way.",
)
async def server_tools(stage: Stage) -> str:
    body = MESSAGES.body(stage.model, [QUESTION], limit=16)
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    exchange = await stage.post(MESSAGES.path, {**body, "tools": [_TOOL, search]})
    return _accepted(exchange, "a web_search tool")


@check(
    "messages.accepts.replay",
    "CC-25",
    title="a tool loop is accepted as the client replays it",
    why="The second turn of every tool loop fails.",
)
async def replay(stage: Stage) -> str:
    history = [
        {"role": "user", "content": "What is the weather in Paris and Rome?"},
        {"role": "assistant", "content": [_thought("Paris first."), _use(1), _use(2)]},
        {"role": "user", "content": [_result(2, "Rain"), _result(1, [_text("Sun")])]},
        {"role": "user", "content": [_text("Go on.")]},
    ]
    body = {"model": stage.model, "max_tokens": 32, "messages": history, "tools": [_TOOL]}
    exchange = await stage.post(MESSAGES.path, body)
    return _accepted(exchange, "thinking and calls without text, results in another order")


@check(
    "messages.accepts.thinking_modes",
    "CC-17",
    title="every way to ask for thinking, or for none, is accepted",
    why="Claude Code chooses the form by the model's name and the kind of agent.",
)
async def thinking_modes(stage: Stage) -> str:
    for thinking in (
        {"type": "adaptive"},
        {"type": "enabled", "budget_tokens": 1024},
        {"type": "disabled"},
    ):
        body = {**MESSAGES.body(stage.model, [QUESTION], limit=1100), "thinking": thinking}
        body |= {"temperature": 1, "stop_sequences": ["\n"]}
        _accepted(await stage.post(MESSAGES.path, body), f"thinking {thinking['type']}")
    return "adaptive, enabled and disabled"


@check(
    "messages.accepts.keys",
    "CC-19",
    title="x-api-key and Authorization are accepted, alone and together",
    why="ANTHROPIC_AUTH_TOKEN or ANTHROPIC_API_KEY: one of them does not let the user in.",
)
async def keys(stage: Stage) -> str:
    key = stage.key or "none"
    body = MESSAGES.body(stage.model, [QUESTION], limit=16)
    bearer, plain = {"authorization": f"Bearer {key}"}, {"x-api-key": key}
    for name, headers in (
        ("Authorization alone", bearer),
        ("x-api-key alone", plain),
        ("both", {**bearer, **plain}),
    ):
        exchange = await stage.post(MESSAGES.path, body, headers, signed=False)
        _accepted(exchange, name)
    return "either, and both"


@check(
    "messages.count_tokens.shape",
    "CC-22",
    title="count_tokens answers with input_tokens, also with tools and without system",
    why="/context shows nothing, and large files are read blindly.",
)
async def count_shape(stage: Stage) -> str:
    body = {"model": stage.model, "messages": [{"role": "user", "content": QUESTION}]}
    plain = await counted(stage, body)
    more = await counted(stage, {**body, "tools": [_TOOL]})
    require(more >= plain, f"{plain} tokens without a tool and {more} with it")
    return f"{plain} tokens, {more} with a tool"


@check(
    "messages.count_tokens.exact",
    "TK-1",
    title="count_tokens is what usage says of the same request",
    why="An estimate compacts too early, or overflows the window.",
)
async def count_exact(stage: Stage) -> str:
    numbers = []
    for turns, more in (
        ([QUESTION], {}),
        ([QUESTION, "Red, green\n\nand blue 🎨.", "Once more, in French: ça va?"], {}),
        ([QUESTION], {"tools": [_TOOL]}),
    ):
        body = MESSAGES.body(stage.model, turns, system=f"Number {stage.unique()}.", limit=16)
        body |= more
        count = await counted(stage, {k: v for k, v in body.items() if k in _COUNTED})
        used = MESSAGES.used((await stage.post(MESSAGES.path, body)).ok()).prompt
        require(count == used, f"count_tokens says {count}, usage {used}")
        numbers.append(f"{count}")
    return f"{', '.join(numbers)} tokens"


async def counted(stage: Stage, body: Json) -> int:
    """What count_tokens says. Not applicable where it is not served."""
    exchange = await stage.post("/v1/messages/count_tokens?beta=true", body)
    if exchange.status in (404, 405, 501):
        raise NotApplicable(f"API not served: count_tokens is answered with {exchange.status}")
    count = exchange.ok().json.get("input_tokens")
    require(isinstance(count, int), f"input_tokens is {count!r}")
    number: int = count
    return number


@check(
    "messages.cache.excluded",
    "TK-3",
    title="input_tokens leaves out what was read from the cache",
    why="Claude Code adds the two: the context looks twice as full as it is, and is compacted.",
)
async def excluded(stage: Stage) -> str:
    body = MESSAGES.body(stage.model, [QUESTION], system=long_text(stage, 500), limit=16)
    count = await counted(stage, {k: v for k, v in body.items() if k in _COUNTED})
    await stage.post(MESSAGES.path, body)
    used = MESSAGES.used((await stage.post(MESSAGES.path, body)).ok())
    if not used.cached:
        raise NotApplicable("no cached tokens were reported")
    # An estimate of count_tokens is another clause's matter: here a double count is looked for.
    require(
        used.prompt < count + used.cached / 2,
        f"input and cached add up to {used.prompt}, not {count}",
    )
    return f"{used.cached} cached of {used.prompt}"


def _text(text: str, *, cached: bool = False) -> Json:
    return {"type": "text", "text": text, **({"cache_control": _EPHEMERAL} if cached else {})}


def _thought(text: str) -> Json:
    return {"type": "thinking", "thinking": text, "signature": "c2lnbmVkIGVsc2V3aGVyZQ=="}


def _use(number: int) -> Json:
    return {
        "type": "tool_use",
        "id": f"toolu_v{number}",
        "name": NAME,
        "input": {"city": f"{number}"},
    }


def _result(number: int, content: object) -> Json:
    return {"type": "tool_result", "tool_use_id": f"toolu_v{number}", "content": content}


CHECKS = (
    beta_query,
    claude_code,
    unknown,
    system_inside,
    server_tools,
    replay,
    thinking_modes,
    keys,
    count_shape,
    count_exact,
    excluded,
)
