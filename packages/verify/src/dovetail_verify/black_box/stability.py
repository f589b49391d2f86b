"""The line that Claude Code varies must not cost the cache."""

from statistics import median

from dovetail_verify.black_box.messages_requests import BILLING_LINE
from dovetail_verify.black_box.samples import QUESTION
from dovetail_verify.black_box.usage import make_long_text
from dovetail_verify.check import NotApplicable, check, require
from dovetail_verify.dialects import MESSAGES, Json
from dovetail_verify.target import TargetServer

_ATTEMPTS = 3
_PREFIX_TOKENS = 1500


@check(
    "messages.cache.billing_line",
    "TK-6",
    title="a varying x-anthropic-billing-header line does not break the cached prefix",
    why="Every session and subagent of Claude Code computes its whole prompt again.",
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
    told = f"{cached} tokens cached with another line, {same.cached_tokens} with the same"
    require(cached >= same.cached_tokens / 2, told)
    return told


async def _judge_by_latency(target: TargetServer) -> str:
    """Where no cached tokens are told, the time to the first token has to tell."""
    cold, warm, varied = [], [], []
    for _ in range(_ATTEMPTS):
        guide = make_long_text(target, _PREFIX_TOKENS)
        cold.append(await _time_to_first_block(target, guide, "a1"))
        warm.append(await _time_to_first_block(target, guide, "a1"))
        varied.append(await _time_to_first_block(target, guide, "z9"))
    slow, quick = median(cold), median(warm)
    found = min(varied)  # a busy machine makes it late, and nothing makes it early
    if quick > 0.6 * slow:
        raise NotApplicable("neither cached tokens nor the time to the first one show a cache")
    told = f"first event after {found:.2f} s with another line, {quick:.2f} s with the same"
    require(found < (slow + quick) / 2, f"{told}, {slow:.2f} s cold")
    return told


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
