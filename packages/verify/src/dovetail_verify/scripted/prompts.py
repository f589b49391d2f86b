"""Checks of one prompt, on what the engine was given: exact counts, and nothing that varies."""

from dovetail.engines.scripted.generation_log import RecordedGeneration
from dovetail_verify.check import Check, require
from dovetail_verify.each_api import each_api
from dovetail_verify.scripted.requests import EPHEMERAL, SYSTEM, ask, play, question, words
from dovetail_verify.scripted.response import read
from dovetail_verify.scripted.scenarios import INTERLEAVED, PLAIN, PLAIN_WORDS
from dovetail_verify.target import Json, Stage


@each_api(
    "usage",
    "TK-1",
    title="usage is what the engine was given and what it generated",
    why="Agents decide by these figures when to compact; too low, and the session overflows.",
)
async def usage(stage: Stage, api: str) -> str:
    nonce = stage.unique()
    body = question(api, stage, words(INTERLEAVED, nonce), stream=True)
    shape = read(api, await ask(api, stage, body))
    heard = (await _heard(stage, nonce))[0]
    prompt, output = len(heard.prompt), len(heard.output)
    require(shape.prompt == prompt, f"{prompt} prompt tokens, {shape.prompt} are reported")
    # The token that ends a turn is counted by some engines and not by others.
    fits = shape.output in (output, output - 1)
    require(fits, f"{output} tokens generated, {shape.output} are reported")
    return f"{prompt} + {output} tokens"


@each_api(
    "usage.start",
    {"messages": "TK-2"},
    title="message_start already counts the prompt exactly",
    why="Claude Code shows the context from the first event on, and keeps it if the stream breaks.",
)
async def usage_at_start(stage: Stage, api: str) -> str:
    nonce = stage.unique()
    body = question(api, stage, words(PLAIN, nonce), stream=True)
    exchange = (await ask(api, stage, body)).ok()
    told = exchange.of("message_start")[0]["message"]["usage"]
    kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    came = sum(told.get(kind) or 0 for kind in kinds)
    prompt = len((await _heard(stage, nonce))[0].prompt)
    require(came == prompt, f"{prompt} prompt tokens, {came} are told at the start")
    return f"{prompt} tokens"


@each_api(
    "count",
    {"messages": "CC-22"},
    title="count_tokens is what the engine is then given",
    why="/context and the reading of large files go by this number.",
)
async def count(stage: Stage, api: str) -> str:
    nonce = stage.unique()
    body = question(api, stage, words(PLAIN, nonce), stream=False)
    asked = {key: body[key] for key in ("model", "messages", "tools", "system")}
    told = (await stage.post("/v1/messages/count_tokens", asked)).ok().json["input_tokens"]
    read(api, await ask(api, stage, body))
    prompt = len((await _heard(stage, nonce))[0].prompt)
    require(told == prompt, f"{prompt} prompt tokens, {told} are counted")
    return f"{prompt} tokens"


@each_api(
    "billing-line",
    {"messages": "TK-6"},
    title="the billing line is not in the prompt",
    why="It varies between requests and stands first: with it, no prefix is ever found again.",
)
async def billing(stage: Stage, api: str) -> str:
    nonce = stage.unique()
    for version in ("2.1.197.0a1", "2.1.197.f3e"):
        body = question(api, stage, words(PLAIN, nonce), stream=False)
        line = f"x-anthropic-billing-header: cc_version={version}; cc_entrypoint=sdk-cli;"
        body["system"] = [{"type": "text", "text": line}, *body["system"]]
        (await ask(api, stage, body)).ok()
    first, second = (await _heard(stage, nonce, 2))[:2]
    require("cc_version" not in first.text, "the line is in the prompt", came=first.text[:300])
    require(first.prompt == second.prompt, "two prompts differ")
    return "prompts are the same"


@each_api(
    "string-or-list",
    {"messages": "TK-4", "chat": "TK-4"},
    title="a string and a list with one text give the same prompt",
    why="Claude Code sends the same turn as a list first and as a string later.",
)
async def string_or_list(stage: Stage, api: str) -> str:
    nonce = stage.unique()
    text = words(PLAIN, nonce)
    parts: list[Json] = [{"type": "text", "text": text}]
    if api == "messages":
        parts[0] |= EPHEMERAL
    contents: tuple[object, ...] = (text, parts)
    for content in contents:
        body = question(api, stage, text, stream=False)
        if api == "messages":
            body["system"] = SYSTEM if content is text else body["system"]
        body["messages"][-1]["content"] = content
        (await ask(api, stage, body)).ok()
    first, second = (await _heard(stage, nonce, 2))[:2]
    require(first.prompt == second.prompt, "two prompts differ", came=second.text[-300:])
    return f"{len(first.prompt)} tokens both times"


@each_api(
    "control-tokens",
    "TK-11",
    title="a control token spelled out by the user stays text",
    why="Whoever writes the token that ends a turn into a file or a web page could speak as the "
    "system to every agent that reads it.",
)
async def control_tokens(stage: Stage, api: str) -> str:
    await play(api, stage, PLAIN)
    plain, spelled = stage.unique(), stage.unique()
    body = question(api, stage, words(PLAIN, plain), stream=True)
    read(api, await ask(api, stage, body))
    heard = (await _heard(stage, plain))[0]
    stop, spelling = heard.output[-1], heard.said.rpartition(PLAIN_WORDS)[2]
    require(bool(spelling), "the engine ended its answer without a token that ends turns")
    text = f"{words(PLAIN, spelled)} {spelling}\n"
    read(api, await ask(api, stage, question(api, stage, text, stream=True)))
    after = (await _heard(stage, spelled))[0]
    more = after.prompt.count(stop) - heard.prompt.count(stop)
    require(more == 0, f"{spelling} in the user's text became {more} control token(s)")
    require(spelling in after.text, f"{spelling} vanished from the user's text")
    return f"{spelling} stayed text"


@each_api(
    "system-in-place",
    {"messages": "CC-18"},
    title="role: system inside messages reaches the model where it stands",
    why="Claude Code sends reminders, files and what the user typed meanwhile this way: moved to "
    "the front they break the prefix, and make no sense there.",
)
async def system_in_place(stage: Stage, api: str) -> str:
    nonce = stage.unique()
    body = question(api, stage, words(PLAIN, nonce), stream=False)
    reminder = f"The reminder of {nonce}."
    body["messages"] = [*body["messages"], {"role": "system", "content": reminder}]
    (await ask(api, stage, body)).ok()
    text = (await _heard(stage, words(PLAIN, nonce)))[0].text
    require(reminder in text, "the reminder is not in the prompt", came=text[-300:])
    in_place = text.index(reminder) > text.index(words(PLAIN, nonce))
    require(in_place, "the reminder stands before the user's message", came=text[:300])
    return "behind the user's message"


@each_api(
    "thinking-unsaid",
    {"messages": "TK-12"},
    title="a request without `thinking` has the prompt of one with adaptive thinking",
    why="Subagents leave it out: another prompt, and they share no prefix with their parent.",
)
async def thinking_unsaid(stage: Stage, api: str) -> str:
    nonce = stage.unique()
    for said in ({}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}):
        body = question(api, stage, words(PLAIN, nonce), stream=False)
        (await ask(api, stage, {**body, **said})).ok()
    first, second = (await _heard(stage, nonce, 2))[:2]
    require(first.prompt == second.prompt, "two prompts differ", came=second.text[-300:])
    return f"{len(first.prompt)} tokens both times"


async def _heard(stage: Stage, nonce: str, least: int = 1) -> list[RecordedGeneration]:
    assert stage.recording is not None
    return await stage.recording.heard(nonce, least)


CHECKS: tuple[Check, ...] = (
    *usage,
    *usage_at_start,
    *count,
    *billing,
    *string_or_list,
    *control_tokens,
    *system_in_place,
    *thinking_unsaid,
)
