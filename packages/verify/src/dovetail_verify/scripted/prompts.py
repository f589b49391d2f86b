"""Checks of one prompt, on what the engine was given: exact counts, and nothing that varies."""

from dovetail.engines.scripted.generation_log import RecordedGeneration
from dovetail_verify.check import Check, require
from dovetail_verify.each_api import check_each_api
from dovetail_verify.scripted.requests import (
    CACHE_CONTROL,
    SYSTEM_PROMPT,
    first_request,
    run_scenario,
    send_request,
    user_message,
)
from dovetail_verify.scripted.response import parse_response
from dovetail_verify.scripted.scenarios import INTERLEAVED, PLAIN, PLAIN_TEXT
from dovetail_verify.target import Json, TargetServer


@check_each_api(
    "usage",
    "TK-1",
    title="usage is what the engine was given and what it generated",
    why="Agents decide by these figures when to compact; too low, and the session overflows.",
)
async def exact_usage(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    body = first_request(api, target, user_message(INTERLEAVED, nonce), stream=True)
    shape = parse_response(api, await send_request(api, target, body))
    heard = (await _recorded_requests(target, nonce))[0]
    prompt, output = len(heard.prompt), len(heard.output)
    require(
        shape.prompt_tokens == prompt, f"{prompt} prompt tokens, {shape.prompt_tokens} are reported"
    )
    # The token that ends a turn is counted by some engines and not by others.
    fits = shape.output_tokens in (output, output - 1)
    require(fits, f"{output} tokens generated, {shape.output_tokens} are reported")
    return f"{prompt} + {output} tokens"


@check_each_api(
    "usage.start",
    {"messages": "TK-2"},
    title="message_start already counts the prompt exactly",
    why="Claude Code shows the context from the first event on, and keeps it if the stream breaks.",
)
async def start_usage(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    body = first_request(api, target, user_message(PLAIN, nonce), stream=True)
    exchange = (await send_request(api, target, body)).require_ok()
    told = exchange.events_of_type("message_start")[0]["message"]["usage"]
    kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    came = sum(told.get(kind) or 0 for kind in kinds)
    prompt = len((await _recorded_requests(target, nonce))[0].prompt)
    require(came == prompt, f"{prompt} prompt tokens, {came} are told at the start")
    return f"{prompt} tokens"


@check_each_api(
    "count",
    {"messages": "CC-22"},
    title="count_tokens is what the engine is then given",
    why="/context and the reading of large files go by this number.",
)
async def exact_count(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    body = first_request(api, target, user_message(PLAIN, nonce), stream=False)
    asked = {key: body[key] for key in ("model", "messages", "tools", "system")}
    told = (await target.post("/v1/messages/count_tokens", asked)).require_ok().json["input_tokens"]
    parse_response(api, await send_request(api, target, body))
    prompt = len((await _recorded_requests(target, nonce))[0].prompt)
    require(told == prompt, f"{prompt} prompt tokens, {told} are counted")
    return f"{prompt} tokens"


@check_each_api(
    "billing-line",
    {"messages": "TK-6"},
    title="the billing line is not in the prompt",
    why="It varies between requests and stands first: with it, no prefix is ever found again.",
)
async def billing_line_excluded(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    for version in ("2.1.197.0a1", "2.1.197.f3e"):
        body = first_request(api, target, user_message(PLAIN, nonce), stream=False)
        line = f"x-anthropic-billing-header: cc_version={version}; cc_entrypoint=sdk-cli;"
        body["system"] = [{"type": "text", "text": line}, *body["system"]]
        (await send_request(api, target, body)).require_ok()
    first, second = (await _recorded_requests(target, nonce, 2))[:2]
    require("cc_version" not in first.text, "the line is in the prompt", received=first.text[:300])
    require(first.prompt == second.prompt, "two prompts differ")
    return "prompts are the same"


@check_each_api(
    "string-or-list",
    {"messages": "TK-4", "chat": "TK-4"},
    title="a string and a list with one text give the same prompt",
    why="Claude Code sends the same turn as a list first and as a string later.",
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
    require(first.prompt == second.prompt, "two prompts differ", received=second.text[-300:])
    return f"{len(first.prompt)} tokens both times"


@check_each_api(
    "control-tokens",
    "TK-11",
    title="a control token spelled out by the user stays text",
    why="Whoever writes the token that ends a turn into a file or a web page could speak as the "
    "system to every agent that reads it.",
)
async def control_tokens(target: TargetServer, api: str) -> str:
    await run_scenario(api, target, PLAIN)
    plain, spelled = target.new_nonce(), target.new_nonce()
    body = first_request(api, target, user_message(PLAIN, plain), stream=True)
    parse_response(api, await send_request(api, target, body))
    heard = (await _recorded_requests(target, plain))[0]
    stop, spelling = heard.output[-1], heard.said.rpartition(PLAIN_TEXT)[2]
    require(bool(spelling), "the engine ended its answer without a token that ends turns")
    text = f"{user_message(PLAIN, spelled)} {spelling}\n"
    parse_response(
        api, await send_request(api, target, first_request(api, target, text, stream=True))
    )
    after = (await _recorded_requests(target, spelled))[0]
    more = after.prompt.count(stop) - heard.prompt.count(stop)
    require(more == 0, f"{spelling} in the user's text became {more} control token(s)")
    require(spelling in after.text, f"{spelling} vanished from the user's text")
    return f"{spelling} stayed text"


@check_each_api(
    "system-in-place",
    {"messages": "CC-18"},
    title="role: system inside messages reaches the model where it stands",
    why="Claude Code sends reminders, files and what the user typed meanwhile this way: moved to "
    "the front they break the prefix, and make no sense there.",
)
async def inline_system_position(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    body = first_request(api, target, user_message(PLAIN, nonce), stream=False)
    reminder = f"The reminder of {nonce}."
    body["messages"] = [*body["messages"], {"role": "system", "content": reminder}]
    (await send_request(api, target, body)).require_ok()
    text = (await _recorded_requests(target, user_message(PLAIN, nonce)))[0].text
    require(reminder in text, "the reminder is not in the prompt", received=text[-300:])
    in_place = text.index(reminder) > text.index(user_message(PLAIN, nonce))
    require(in_place, "the reminder stands before the user's message", received=text[:300])
    return "behind the user's message"


@check_each_api(
    "thinking-unsaid",
    {"messages": "TK-12"},
    title="a request without `thinking` has the prompt of one with adaptive thinking",
    why="Subagents leave it out: another prompt, and they share no prefix with their parent.",
)
async def default_thinking(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    for said in ({}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}):
        body = first_request(api, target, user_message(PLAIN, nonce), stream=False)
        (await send_request(api, target, {**body, **said})).require_ok()
    first, second = (await _recorded_requests(target, nonce, 2))[:2]
    require(first.prompt == second.prompt, "two prompts differ", received=second.text[-300:])
    return f"{len(first.prompt)} tokens both times"


async def _recorded_requests(
    target: TargetServer, nonce: str, min_count: int = 1
) -> list[RecordedGeneration]:
    assert target.recording is not None
    return await target.recording.find_requests(nonce, min_count)


PROMPT_CHECKS: tuple[Check, ...] = (
    *exact_usage,
    *start_usage,
    *exact_count,
    *billing_line_excluded,
    *string_or_list,
    *control_tokens,
    *inline_system_position,
    *default_thinking,
)
