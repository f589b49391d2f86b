"""Checks of the next prompt, on what the engine was given: the turn as the model wrote it."""

from dataclasses import dataclass

from dovetail.engines.scripted.generation_log import RecordedGeneration
from dovetail_verify.check import Check, require
from dovetail_verify.each_api import check_each_api
from dovetail_verify.exchange import abbreviate
from dovetail_verify.scripted.requests import (
    first_request,
    followup_request,
    send_request,
    user_message,
)
from dovetail_verify.scripted.response import ParsedResponse, parse_response
from dovetail_verify.scripted.scenarios import INTERLEAVED, MIXED, NEXT_TEXT, Scenario
from dovetail_verify.target import TargetServer

_EXACT_IMPACT = (
    "What differs from the model's own tokens is computed again on every turn, and the model "
)
_EXACT_IMPACT += "reads a history that it did not write."


@dataclass(frozen=True)
class ReplayedTurns:
    """Two turns of a conversation: what the client saw of both, what the engine was given."""

    first: ParsedResponse
    second: ParsedResponse
    first_record: RecordedGeneration
    second_record: RecordedGeneration

    @property
    def matching_tokens(self) -> int:
        """How many tokens of the first prompt and its answer the next prompt begins with."""
        spoken = (*self.first_record.prompt, *self.first_record.output)
        both = list(zip(spoken, self.second_record.prompt, strict=False))
        return next((at for at, (a, b) in enumerate(both) if a != b), len(both))

    @property
    def expected_tokens(self) -> int:
        """Without the last one: in some families it depends on what follows the turn."""
        return len(self.first_record.prompt) + len(self.first_record.output) - 1


async def run_two_turns(
    target: TargetServer, api: str, scenario: Scenario, *, calls_last: bool = False
) -> ReplayedTurns:
    """A scene, sent back with the results of its calls."""

    async def make(stage: TargetServer) -> ReplayedTurns:
        nonce = stage.new_nonce()
        body = first_request(api, stage, user_message(scenario, nonce), stream=True)
        if api == "messages":
            body["metadata"] = {"user_id": f"meta-{nonce}"}
        if api == "responses":
            body["prompt_cache_key"] = f"meta-{nonce}"
        first = parse_response(api, await send_request(api, stage, body))
        require(len(first.parts_of("call")) == 2, f"{len(first.parts_of('call'))} calls came")
        again = followup_request(api, body, first, nonce, calls_last=calls_last)
        second = parse_response(api, await send_request(api, stage, again))
        assert stage.recording is not None
        heard = await stage.recording.find_requests(nonce, 2)
        return ReplayedTurns(first, second, heard[0], heard[-1])

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
    grown = turns.second_record.text[
        turns.second_record.text.index(user_message(scenario, "")[:12]) :
    ]
    said = [(p.kind, p.text or str((p.arguments or {}).get("city"))) for p in scenario.parts]
    wanted = [*said, ("result", " 0: sunny"), ("result", " 1: sunny")]
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
    kept, spoken = turns.matching_tokens, turns.expected_tokens
    came = f"the prompt: … {abbreviate(turns.second_record.text[len(turns.first_record.text) - 60 :], 700)}"
    sent = f"the model wrote: {abbreviate(turns.first_record.said, 500)}"
    require(kept >= spoken, f"{kept} of {spoken} tokens are the same", sent=sent, received=came)
    return f"all {spoken} tokens"


@check_each_api(
    "replay.cached",
    "TK-5",
    title="the tokens reported as cached are those that the engine found",
    why="Without the figure nobody sees that a session computes everything again, or pays for it.",
)
async def cached_tokens(target: TargetServer, api: str) -> str:
    turns = await run_two_turns(target, api, INTERLEAVED)
    told, truth = turns.second.cached_tokens, turns.second_record.cached
    require(told == truth, f"the engine found {truth} tokens in its cache, {told} are reported")
    return f"{truth} tokens"


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
    found = [id for id in [*named, "meta-"] if id and id in turns.second_record.text]
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
