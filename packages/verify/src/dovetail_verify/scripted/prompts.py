"""Checks of the prompts that the engine received: exact counts, and no varying content."""

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
    "Tokens that differ from the model's own output are re-prefilled on every turn, and the model "
    "reads a history that it did not generate."
)


@dataclass(frozen=True)
class ReplayedTurns:
    """Two turns of a conversation: the responses that the client received, and the recordings."""

    first: ParsedResponse
    second: ParsedResponse
    first_record: RecordedRequest
    second_record: RecordedRequest

    @property
    def matching_tokens(self) -> int:
        """How many tokens of the first prompt and its output the second prompt starts with."""
        expected = (*self.first_record.prompt_tokens, *self.first_record.output_tokens)
        both = list(zip(expected, self.second_record.prompt_tokens, strict=False))
        return next((at for at, (a, b) in enumerate(both) if a != b), len(both))

    @property
    def expected_tokens(self) -> int:
        """All but the last token, which in some families depends on the next message."""
        return len(self.first_record.prompt_tokens) + len(self.first_record.output_tokens) - 1


async def run_two_turns(
    target: TargetServer, api: str, scenario: Scenario, *, calls_last: bool = False
) -> ReplayedTurns:
    """Run a scenario, then replay it with the results of its calls."""

    async def make(server: TargetServer) -> ReplayedTurns:
        nonce = server.new_nonce()
        body = first_request(api, server, user_message(scenario, nonce), stream=True)
        if api == "messages":
            body["metadata"] = {"user_id": f"meta-{nonce}"}
        if api == "responses":
            body["prompt_cache_key"] = f"meta-{nonce}"
        first = parse_response(api, await send_request(api, server, body))
        require(
            len(first.parts_of("call")) == 2,
            f"expected 2 calls, received {len(first.parts_of('call'))}",
        )
        again = followup_request(api, body, first, nonce, calls_last=calls_last)
        second = parse_response(api, await send_request(api, server, again))
        assert server.recording is not None
        records = await server.recording.find_requests(nonce, 2)
        return ReplayedTurns(first, second, records[0], records[-1])

    return await target.memoize(f"{api} {scenario.name} conversation {calls_last}", make)


@check_each_api(
    "replay.accepted",
    {"messages": "CC-25", "responses": "CX-23", "chat": "AG-4"},
    title="the server accepts its own turn, replayed with the tool results",
    why="A server that rejects its own output ends the session.",
)
async def replay_accepted(target: TargetServer, api: str) -> str:
    turns = await run_two_turns(target, api, INTERLEAVED)
    text = turns.second.text_of("text")
    require(text.strip() == NEXT_TEXT, f"the next response is {text!r}")
    return "accepted"


@check_each_api(
    "replay.order",
    {"messages": "CC-27", "responses": "CX-23", "chat": "R2"},
    title="the next prompt keeps the order reasoning, call, reasoning, call, result, result",
    why="In a regrouped turn the model reads its second plan before its first call.",
)
async def replay_order(target: TargetServer, api: str) -> str:
    return _require_order(await run_two_turns(target, api, INTERLEAVED), INTERLEAVED)


@check_each_api(
    "replay.moved",
    {"messages": "CC-27"},
    title="the server restores the order of a turn whose calls the client moved to the end",
    why="Claude Code moves all calls after the last text, which is not what the model generated.",
)
async def moved_calls_order(target: TargetServer, api: str) -> str:
    return _require_order(await run_two_turns(target, api, MIXED, calls_last=True), MIXED)


def _require_order(turns: ReplayedTurns, scenario: Scenario) -> str:
    """Fail the check unless the prompt has all parts of the scenario in order."""
    grown = turns.second_record.prompt_text[
        turns.second_record.prompt_text.index(user_message(scenario, "")[:12]) :
    ]
    parts = [(p.kind, p.text or str((p.arguments or {}).get("city"))) for p in scenario.parts]
    wanted = [*parts, ("result", " 0: sunny"), ("result", " 1: sunny")]
    at = 0
    for kind, text in wanted:
        found = grown.find(text, at)
        missing = "is not in the prompt" if text not in grown else "is in the wrong place"
        require(found >= 0, f"the {kind} {text!r} {missing}", received=abbreviate(grown, 900))
        at = found + len(text)
    return f"{len(wanted)} parts in order"


@check_each_api(
    "replay.exact",
    "R10",
    title="the next prompt starts with the previous prompt and the model's own tokens",
    why=_EXACT_IMPACT,
)
async def exact_prefix(target: TargetServer, api: str) -> str:
    return _require_exact_prefix(await run_two_turns(target, api, INTERLEAVED))


@check_each_api(
    "replay.exact-moved",
    {"messages": "R10"},
    title="a turn whose calls the client moved becomes the model's own tokens again",
    why=_EXACT_IMPACT,
)
async def moved_calls_exact_prefix(target: TargetServer, api: str) -> str:
    return _require_exact_prefix(await run_two_turns(target, api, MIXED, calls_last=True))


def _require_exact_prefix(turns: ReplayedTurns) -> str:
    matching, expected = turns.matching_tokens, turns.expected_tokens
    added = turns.second_record.prompt_text[len(turns.first_record.prompt_text) - 60 :]
    received = f"the prompt: … {abbreviate(added, 700)}"
    sent = f"the model generated: {abbreviate(turns.first_record.output_text, 500)}"
    require(
        matching >= expected,
        f"{matching} of {expected} tokens match",
        sent=sent,
        received=received,
    )
    return f"all {expected} tokens"


@check_each_api(
    "replay.cached",
    "TK-5",
    title="the reported cached tokens equal those of the engine",
    why="Without this count, a session that re-prefills every turn goes unnoticed.",
)
async def cached_tokens(target: TargetServer, api: str) -> str:
    turns = await run_two_turns(target, api, INTERLEAVED)
    reported, actual = turns.second.cached_tokens, turns.second_record.cached_count
    require(
        reported == actual,
        f"the engine had {actual} cached tokens, usage reports {reported}",
    )
    return f"{actual} tokens"


@check_each_api(
    "replay.ids",
    "TK-7",
    title="the prompt contains no ids and no client metadata",
    why="Ids differ in every session, so a single id in the prompt prevents prefix cache hits.",
)
async def ids_excluded(target: TargetServer, api: str) -> str:
    turns = await run_two_turns(target, api, INTERLEAVED)
    named = [part.id for part in turns.first.parts_of("call")]
    named += [item["id"] for item in turns.first.items if item.get("id")]
    named += [part.signature for part in turns.first.parts if len(part.signature) > 12]
    found = [id for id in [*named, "meta-"] if id and id in turns.second_record.prompt_text]
    require(not found, f"the prompt contains {abbreviate(', '.join(found))}")
    return f"none of {len(named)} ids is in the prompt"


REPLAY_CHECKS: tuple[Check, ...] = (
    *replay_accepted,
    *replay_order,
    *moved_calls_order,
    *exact_prefix,
    *moved_calls_exact_prefix,
    *cached_tokens,
    *ids_excluded,
)
