"""Checks of the prompts that the engine received: exact counts, and no varying content."""

from dovetail_verify.api_checks import check_each_api
from dovetail_verify.check import Check, require
from dovetail_verify.scripted.requests import (
    CACHE_CONTROL,
    SYSTEM_PROMPT,
    first_request,
    run_scenario,
    send_request,
    user_message,
)
from dovetail_verify.scripted.response import parse_response
from dovetail_verify.scripted.scenarios import (
    INTERLEAVED,
    PLAIN,
    PLAIN_TEXT,
)
from dovetail_verify.target import Json, RecordedRequest, TargetServer


@check_each_api(
    "usage",
    "TK-1",
    title="usage equals the tokens that the engine received and generated",
    why="Agents use these counts to decide when to compact; if they are too low, the session "
    "exceeds the context window.",
)
async def exact_usage(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    body = first_request(api, target, user_message(INTERLEAVED, nonce), stream=True)
    parsed = parse_response(api, await send_request(api, target, body))
    record = (await _recorded_requests(target, nonce))[0]
    prompt, output = len(record.prompt_tokens), len(record.output_tokens)
    require(
        parsed.prompt_tokens == prompt,
        f"the prompt has {prompt} tokens, usage reports {parsed.prompt_tokens}",
    )
    # Some engines count the token that ends a turn, and others do not.
    fits = parsed.output_tokens in (output, output - 1)
    require(fits, f"the output has {output} tokens, usage reports {parsed.output_tokens}")
    return f"{prompt} + {output} tokens"


@check_each_api(
    "usage.start",
    {"messages": "TK-2"},
    title="message_start already reports the exact prompt tokens",
    why="Claude Code shows the context usage from the first event, even if the stream breaks.",
)
async def start_usage(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    body = first_request(api, target, user_message(PLAIN, nonce), stream=True)
    exchange = (await send_request(api, target, body)).require_ok()
    usage = exchange.events_of_type("message_start")[0]["message"]["usage"]
    kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    reported = sum(usage.get(kind) or 0 for kind in kinds)
    prompt = len((await _recorded_requests(target, nonce))[0].prompt_tokens)
    require(reported == prompt, f"the prompt has {prompt} tokens, message_start reports {reported}")
    return f"{prompt} tokens"


@check_each_api(
    "count",
    {"messages": "CC-22"},
    title="count_tokens equals the prompt tokens that the engine receives",
    why="/context and the decision whether to read a large file use this number.",
)
async def exact_count(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    body = first_request(api, target, user_message(PLAIN, nonce), stream=False)
    counted = {key: body[key] for key in ("model", "messages", "tools", "system")}
    count = (
        (await target.post("/v1/messages/count_tokens", counted)).require_ok().json["input_tokens"]
    )
    parse_response(api, await send_request(api, target, body))
    prompt = len((await _recorded_requests(target, nonce))[0].prompt_tokens)
    require(count == prompt, f"the prompt has {prompt} tokens, count_tokens returns {count}")
    return f"{prompt} tokens"


@check_each_api(
    "billing-line",
    {"messages": "TK-6"},
    title="the billing line is not part of the prompt",
    why="It varies between requests and comes first, so it prevents every prefix cache hit.",
)
async def billing_line_excluded(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    for version in ("2.1.197.0a1", "2.1.197.f3e"):
        body = first_request(api, target, user_message(PLAIN, nonce), stream=False)
        line = f"x-anthropic-billing-header: cc_version={version}; cc_entrypoint=sdk-cli;"
        body["system"] = [{"type": "text", "text": line}, *body["system"]]
        (await send_request(api, target, body)).require_ok()
    first, second = (await _recorded_requests(target, nonce, 2))[:2]
    require(
        "cc_version" not in first.prompt_text,
        "the billing line is in the prompt",
        received=first.prompt_text[:300],
    )
    require(first.prompt_tokens == second.prompt_tokens, "the two prompts differ")
    return "both prompts are the same"


@check_each_api(
    "string-or-list",
    {"messages": "TK-4", "chat": "TK-4"},
    title="a string and a list with one text part produce the same prompt",
    why="Claude Code first sends a turn as a list and later as a string.",
)
async def string_or_list(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    text = user_message(PLAIN, nonce)
    parts: list[Json] = [{"type": "text", "text": text}]
    if api == "messages":
        parts[0] |= CACHE_CONTROL
    contents: tuple[object, ...] = (text, parts)
    for content in contents:
        body = first_request(api, target, text, stream=False)
        if api == "messages":
            body["system"] = SYSTEM_PROMPT if content is text else body["system"]
        body["messages"][-1]["content"] = content
        (await send_request(api, target, body)).require_ok()
    first, second = (await _recorded_requests(target, nonce, 2))[:2]
    require(
        first.prompt_tokens == second.prompt_tokens,
        "the two prompts differ",
        received=second.prompt_text[-300:],
    )
    return f"{len(first.prompt_tokens)} tokens both times"


@check_each_api(
    "control-tokens",
    "TK-11",
    title="a control token spelled out by the user remains text",
    why="An author of a file or a web page could spell out the token that ends a turn and inject a "
    "system message into every agent that reads it.",
)
async def control_tokens(target: TargetServer, api: str) -> str:
    await run_scenario(api, target, PLAIN)
    plain, spelled = target.new_nonce(), target.new_nonce()
    body = first_request(api, target, user_message(PLAIN, plain), stream=True)
    parse_response(api, await send_request(api, target, body))
    record = (await _recorded_requests(target, plain))[0]
    stop, spelling = record.output_tokens[-1], record.output_text.rpartition(PLAIN_TEXT)[2]
    require(bool(spelling), "the output of the engine has no token that ends a turn")
    text = f"{user_message(PLAIN, spelled)} {spelling}\n"
    parse_response(
        api, await send_request(api, target, first_request(api, target, text, stream=True))
    )
    after = (await _recorded_requests(target, spelled))[0]
    more = after.prompt_tokens.count(stop) - record.prompt_tokens.count(stop)
    require(more == 0, f"{spelling} in the user's text became {more} control token(s)")
    require(spelling in after.prompt_text, f"{spelling} is missing from the user's text")
    return f"{spelling} remained text"


@check_each_api(
    "system-in-place",
    {"messages": "CC-18"},
    title="a message with role: system reaches the model at its position",
    why="Claude Code sends reminders, files and queued user input this way. Moved to the front, "
    "they break the prefix and lose their context.",
)
async def inline_system_position(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    body = first_request(api, target, user_message(PLAIN, nonce), stream=False)
    reminder = f"The reminder of {nonce}."
    body["messages"] = [*body["messages"], {"role": "system", "content": reminder}]
    (await send_request(api, target, body)).require_ok()
    text = (await _recorded_requests(target, user_message(PLAIN, nonce)))[0].prompt_text
    require(reminder in text, "the reminder is not in the prompt", received=text[-300:])
    in_place = text.index(reminder) > text.index(user_message(PLAIN, nonce))
    require(in_place, "the reminder is before the user's message", received=text[:300])
    return "after the user's message"


@check_each_api(
    "thinking-unsaid",
    {"messages": "TK-12"},
    title="a request without `thinking` has the same prompt as one with adaptive thinking",
    why="Subagents omit the field; with a different prompt they share no prefix with their parent.",
)
async def default_thinking(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    for fields in ({}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}):
        body = first_request(api, target, user_message(PLAIN, nonce), stream=False)
        (await send_request(api, target, {**body, **fields})).require_ok()
    first, second = (await _recorded_requests(target, nonce, 2))[:2]
    require(
        first.prompt_tokens == second.prompt_tokens,
        "the two prompts differ",
        received=second.prompt_text[-300:],
    )
    return f"{len(first.prompt_tokens)} tokens both times"


async def _recorded_requests(
    target: TargetServer, nonce: str, min_count: int = 1
) -> list[RecordedRequest]:
    assert target.recording is not None
    return await target.recording.find_requests(nonce, min_count)


CHECKS: tuple[Check, ...] = (
    *exact_usage,
    *start_usage,
    *exact_count,
    *billing_line_excluded,
    *string_or_list,
    *control_tokens,
    *inline_system_position,
    *default_thinking,
)
