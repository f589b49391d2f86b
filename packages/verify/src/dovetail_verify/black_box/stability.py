"""The line that Claude Code varies must not cost the cache."""

from statistics import median

from dovetail_verify.black_box.messages_requests import BILLING
from dovetail_verify.black_box.samples import QUESTION
from dovetail_verify.black_box.usage import long_text
from dovetail_verify.check import NotApplicable, check, require
from dovetail_verify.dialects import MESSAGES, Json
from dovetail_verify.target import Stage

_TRIES = 3
_TOKENS = 1500


@check(
    "messages.cache.billing_line",
    "TK-6",
    title="a varying x-anthropic-billing-header line does not break the cached prefix",
    why="Every session and subagent of Claude Code computes its whole prompt again.",
)
async def billing_line(stage: Stage) -> str:
    guide = long_text(stage, _TOKENS)
    await stage.post(MESSAGES.path, _body(stage, guide, "a1"))
    same = MESSAGES.used((await stage.post(MESSAGES.path, _body(stage, guide, "a1"))).ok())
    if not same.cached or same.cached < same.prompt / 2:
        return await _by_time(stage)
    varied = MESSAGES.used((await stage.post(MESSAGES.path, _body(stage, guide, "z9"))).ok())
    cached = varied.cached or 0
    told = f"{cached} tokens cached with another line, {same.cached} with the same"
    require(cached >= same.cached / 2, told)
    return told


async def _by_time(stage: Stage) -> str:
    """Where no cached tokens are told, the time to the first token has to tell."""
    cold, warm, varied = [], [], []
    for _ in range(_TRIES):
        guide = long_text(stage, _TOKENS)
        cold.append(await _first_event(stage, guide, "a1"))
        warm.append(await _first_event(stage, guide, "a1"))
        varied.append(await _first_event(stage, guide, "z9"))
    slow, quick = median(cold), median(warm)
    found = min(varied)  # a busy machine makes it late, and nothing makes it early
    if quick > 0.6 * slow:
        raise NotApplicable("neither cached tokens nor the time to the first one show a cache")
    told = f"first event after {found:.2f} s with another line, {quick:.2f} s with the same"
    require(found < (slow + quick) / 2, f"{told}, {slow:.2f} s cold")
    return told


async def _first_event(stage: Stage, guide: str, word: str) -> float:
    exchange = await stage.post(MESSAGES.path, MESSAGES.streamed(_body(stage, guide, word)))
    starts = [frame.at for frame in exchange.ok().frames if frame.type == "content_block_start"]
    return starts[0] if starts else exchange.ended


def _body(stage: Stage, guide: str, word: str) -> Json:
    body = MESSAGES.body(stage.model, [QUESTION], limit=16)
    line = {"type": "text", "text": BILLING.format(word=word)}
    rest = {"type": "text", "text": guide, "cache_control": {"type": "ephemeral"}}
    return {**body, "system": [line, rest]}


CHECKS = (billing_line,)
