"""Checks of one prompt, on what the engine was given: exact counts, and nothing that varies."""

from dataclasses import dataclass

from dovetail_verify.api_checks import check_each_api
from dovetail_verify.check import Check, require
from dovetail_verify.exchange import abbreviate
from dovetail_verify.scripted.requests import (
    CACHE_CONTROL,
    SYSTEM_PROMPT,
    first_request,
    followup_request,
    run_scenario,
    send_request,
    user_message,
)
from dovetail_verify.scripted.response import ParsedResponse, parse_response
from dovetail_verify.scripted.scenarios import (
    INTERLEAVED,
    MIXED,
    NEXT_TEXT,
    PLAIN,
    PLAIN_TEXT,
    Scenario,
)
from dovetail_verify.target import Json, RecordedRequest, TargetServer


@check_each_api(
    "usage",
    "TK-1",
    title="usage is what the engine was given and what it generated",
    why="Agents decide by these figures when to compact; too low, and the session overflows.",
)
async def exact_usage(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    body = first_request(api, target, user_message(INTERLEAVED, nonce), stream=True)
    parsed = parse_response(api, await send_request(api, target, body))
    record = (await _recorded_requests(target, nonce))[0]
    prompt, output = len(record.prompt_tokens), len(record.output_tokens)
    require(
        parsed.prompt_tokens == prompt,
        f"{prompt} prompt tokens, {parsed.prompt_tokens} are reported",
    )
    # The token that ends a turn is counted by some engines and not by others.
    fits = parsed.output_tokens in (output, output - 1)
    require(fits, f"{output} tokens generated, {parsed.output_tokens} are reported")
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
    usage = exchange.events_of_type("message_start")[0]["message"]["usage"]
    kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    reported = sum(usage.get(kind) or 0 for kind in kinds)
    prompt = len((await _recorded_requests(target, nonce))[0].prompt_tokens)
    require(reported == prompt, f"{prompt} prompt tokens, {reported} are told at the start")
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
    counted = {key: body[key] for key in ("model", "messages", "tools", "system")}
    count = (
        (await target.post("/v1/messages/count_tokens", counted)).require_ok().json["input_tokens"]
    )
    parse_response(api, await send_request(api, target, body))
    prompt = len((await _recorded_requests(target, nonce))[0].prompt_tokens)
    require(count == prompt, f"{prompt} prompt tokens, {count} are counted")
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
    require(
        "cc_version" not in first.prompt_text,
        "the line is in the prompt",
        received=first.prompt_text[:300],
    )
    require(first.prompt_tokens == second.prompt_tokens, "two prompts differ")
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
    require(
        first.prompt_tokens == second.prompt_tokens,
        "two prompts differ",
        received=second.prompt_text[-300:],
    )
    return f"{len(first.prompt_tokens)} tokens both times"


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
    record = (await _recorded_requests(target, plain))[0]
    stop, spelling = record.output_tokens[-1], record.output_text.rpartition(PLAIN_TEXT)[2]
    require(bool(spelling), "the engine ended its answer without a token that ends turns")
    text = f"{user_message(PLAIN, spelled)} {spelling}\n"
    parse_response(
        api, await send_request(api, target, first_request(api, target, text, stream=True))
    )
    after = (await _recorded_requests(target, spelled))[0]
    more = after.prompt_tokens.count(stop) - record.prompt_tokens.count(stop)
    require(more == 0, f"{spelling} in the user's text became {more} control token(s)")
    require(spelling in after.prompt_text, f"{spelling} vanished from the user's text")
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
    text = (await _recorded_requests(target, user_message(PLAIN, nonce)))[0].prompt_text
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
    for fields in ({}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}):
        body = first_request(api, target, user_message(PLAIN, nonce), stream=False)
        (await send_request(api, target, {**body, **fields})).require_ok()
    first, second = (await _recorded_requests(target, nonce, 2))[:2]
    require(
        first.prompt_tokens == second.prompt_tokens,
        "two prompts differ",
        received=second.prompt_text[-300:],
    )
    return f"{len(first.prompt_tokens)} tokens both times"


async def _recorded_requests(
    target: TargetServer, nonce: str, min_count: int = 1
) -> list[RecordedRequest]:
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


_EXACT_IMPACT = (
    "What differs from the model's own tokens is computed again on every turn, and the model "
)
_EXACT_IMPACT += "reads a history that it did not write."


@dataclass(frozen=True)
class ReplayedTurns:
    """Two turns of a conversation: what the client saw of both, what the engine was given."""

    first: ParsedResponse
    second: ParsedResponse
    first_record: RecordedRequest
    second_record: RecordedRequest

    @property
    def matching_tokens(self) -> int:
        """How many tokens of the first prompt and its answer the next prompt begins with."""
        expected = (*self.first_record.prompt_tokens, *self.first_record.output_tokens)
        both = list(zip(expected, self.second_record.prompt_tokens, strict=False))
        return next((at for at, (a, b) in enumerate(both) if a != b), len(both))

    @property
    def expected_tokens(self) -> int:
        """Without the last one: in some families it depends on what follows the turn."""
        return len(self.first_record.prompt_tokens) + len(self.first_record.output_tokens) - 1


async def run_two_turns(
    target: TargetServer, api: str, scenario: Scenario, *, calls_last: bool = False
) -> ReplayedTurns:
    """A scene, sent back with the results of its calls."""

    async def make(server: TargetServer) -> ReplayedTurns:
        nonce = server.new_nonce()
        body = first_request(api, server, user_message(scenario, nonce), stream=True)
        if api == "messages":
            body["metadata"] = {"user_id": f"meta-{nonce}"}
        if api == "responses":
            body["prompt_cache_key"] = f"meta-{nonce}"
        first = parse_response(api, await send_request(api, server, body))
        require(len(first.parts_of("call")) == 2, f"{len(first.parts_of('call'))} calls came")
        again = followup_request(api, body, first, nonce, calls_last=calls_last)
        second = parse_response(api, await send_request(api, server, again))
        assert server.recording is not None
        records = await server.recording.find_requests(nonce, 2)
        return ReplayedTurns(first, second, records[0], records[-1])

    return await target.memoize(f"{api} {scenario.name} conversation {calls_last}", make)


@check_each_api(
    "replay.accepted",
    {"messages": "CC-25", "responses": "CX-23", "chat": "AG-4"},
    title="the turn, sent back with its results, is answered",
    why="A server that refuses its own answer ends the session.",
)
async def replay_accepted(target: TargetServer, api: str) -> str:
    turns = await run_two_turns(target, api, INTERLEAVED)
    text = turns.second.text_of("text")
    require(text.strip() == NEXT_TEXT, f"the next answer is {text!r}")
    return "answered"


@check_each_api(
    "replay.order",
    {"messages": "CC-27", "responses": "CX-23", "chat": "R2"},
    title="the next prompt has think, call, think, call, result, result in this order",
    why="Grouped thoughts explain nothing: the model reads its second plan before its first call.",
)
async def replay_order(target: TargetServer, api: str) -> str:
    return _require_order(await run_two_turns(target, api, INTERLEAVED), INTERLEAVED)


@check_each_api(
    "replay.moved",
    {"messages": "CC-27"},
    title="a turn whose calls the client moved to the end is put in order again",
    why="Claude Code moves all calls behind the last text; the model never wrote it so.",
)
async def moved_calls_order(target: TargetServer, api: str) -> str:
    return _require_order(await run_two_turns(target, api, MIXED, calls_last=True), MIXED)


def _require_order(turns: ReplayedTurns, scenario: Scenario) -> str:
    """Each part behind the last one, in the prompt's own text."""
    grown = turns.second_record.prompt_text[
        turns.second_record.prompt_text.index(user_message(scenario, "")[:12]) :
    ]
    parts = [(p.kind, p.text or str((p.arguments or {}).get("city"))) for p in scenario.parts]
    wanted = [*parts, ("result", " 0: sunny"), ("result", " 1: sunny")]
    at = 0
    for kind, text in wanted:
        found = grown.find(text, at)
        missing = "is not in the prompt" if text not in grown else "is not in its place"
        require(found >= 0, f"the {kind} {text!r} {missing}", received=abbreviate(grown, 900))
        at = found + len(text)
    return f"{len(wanted)} parts in order"


@check_each_api(
    "replay.exact",
    "R10",
    title="the next prompt begins with the last prompt and the model's own tokens",
    why=_EXACT_IMPACT,
)
async def exact_prefix(target: TargetServer, api: str) -> str:
    return _require_exact_prefix(await run_two_turns(target, api, INTERLEAVED))


@check_each_api(
    "replay.exact-moved",
    {"messages": "R10"},
    title="a turn whose calls the client moved is the model's own tokens again",
    why=_EXACT_IMPACT,
)
async def moved_calls_exact_prefix(target: TargetServer, api: str) -> str:
    return _require_exact_prefix(await run_two_turns(target, api, MIXED, calls_last=True))


def _require_exact_prefix(turns: ReplayedTurns) -> str:
    matching, expected = turns.matching_tokens, turns.expected_tokens
    added = turns.second_record.prompt_text[len(turns.first_record.prompt_text) - 60 :]
    received = f"the prompt: … {abbreviate(added, 700)}"
    sent = f"the model wrote: {abbreviate(turns.first_record.output_text, 500)}"
    require(
        matching >= expected,
        f"{matching} of {expected} tokens are the same",
        sent=sent,
        received=received,
    )
    return f"all {expected} tokens"


@check_each_api(
    "replay.cached",
    "TK-5",
    title="the tokens reported as cached are those that the engine found",
    why="Without the figure nobody sees that a session computes everything again, or pays for it.",
)
async def cached_tokens(target: TargetServer, api: str) -> str:
    turns = await run_two_turns(target, api, INTERLEAVED)
    reported, actual = turns.second.cached_tokens, turns.second_record.cached_count
    require(
        reported == actual,
        f"the engine found {actual} tokens in its cache, {reported} are reported",
    )
    return f"{actual} tokens"


@check_each_api(
    "replay.ids",
    "TK-7",
    title="no id and no metadata of the client is in the prompt",
    why="Ids differ in every session: one of them in the prompt, and no prefix is ever found.",
)
async def ids_excluded(target: TargetServer, api: str) -> str:
    turns = await run_two_turns(target, api, INTERLEAVED)
    named = [part.id for part in turns.first.parts_of("call")]
    named += [item["id"] for item in turns.first.items if item.get("id")]
    named += [part.signature for part in turns.first.parts if len(part.signature) > 12]
    found = [id for id in [*named, "meta-"] if id and id in turns.second_record.prompt_text]
    require(not found, f"in the prompt: {abbreviate(', '.join(found))}")
    return f"{len(named)} ids looked for"


REPLAY_CHECKS: tuple[Check, ...] = (
    *replay_accepted,
    *replay_order,
    *moved_calls_order,
    *exact_prefix,
    *moved_calls_exact_prefix,
    *cached_tokens,
    *ids_excluded,
)
