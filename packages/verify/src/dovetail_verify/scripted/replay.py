"""Checks of replayed turns: the next prompt continues the last one, token for token."""

from dataclasses import dataclass

from dovetail_verify.api_checks import check_each_api
from dovetail_verify.check import Check, require
from dovetail_verify.exchange import abbreviate
from dovetail_verify.scripted.requests import (
    first_request,
    followup_request,
    send_request,
    user_message,
)
from dovetail_verify.scripted.response import ParsedResponse, parse_response
from dovetail_verify.scripted.scenarios import INTERLEAVED, MIXED, NEXT_TEXT, Scenario
from dovetail_verify.target import RecordedRequest, TargetServer

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
    return require_exact_prefix(await run_two_turns(target, api, INTERLEAVED))


@check_each_api(
    "replay.exact-moved",
    {"messages": "R10"},
    title="a turn whose calls the client moved becomes the model's own tokens again",
    why=_EXACT_IMPACT,
)
async def moved_calls_exact_prefix(target: TargetServer, api: str) -> str:
    return require_exact_prefix(await run_two_turns(target, api, MIXED, calls_last=True))


def require_exact_prefix(turns: ReplayedTurns) -> str:
    """Fail the check unless the second prompt starts with the first one and its output."""
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


CHECKS: tuple[Check, ...] = (
    *replay_accepted,
    *replay_order,
    *moved_calls_order,
    *exact_prefix,
    *moved_calls_exact_prefix,
    *cached_tokens,
    *ids_excluded,
)
