"""What became of prompts: which turns stayed a prefix, and how many tokens were computed again.

Two sources, and no third: Dovetail's own word where it makes the prompts itself, and what watch
mode finds out about a server from outside. Only what the server's own counts bear out is counted;
all else is unknown.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dovetail.eval.agent import Run, Step
from dovetail.watch.analyzer import ExchangeAnalyzer
from dovetail.watch.exchange import CapturedExchange
from dovetail.watch.reference_model import ReferenceModels
from dovetail.watch.verdict import ExchangeAnalysis


@dataclass(frozen=True)
class Prompt:
    """One prompt. `exact` says that all before what is new is the prompt and answer before it.

    `new` is what it adds to them, `prompt` and `cached` are the server's own numbers. None is
    unknown; `exact` of a session's first prompt is, since nothing is before it.
    """

    first: bool
    exact: bool | None = None
    new: int | None = None
    prompt: int | None = None
    cached: int | None = None
    broke: str | None = None
    needless: int = 0


@dataclass(frozen=True)
class Prefixes:
    """The sums of a pass. `later` prompts go on from another one.

    `prompt`, `computed` and `again` are None where the server does not tell. `again` is the sum
    over those `again_of` prompts of which what is new is known. `opening` are the tokens of the
    shortest prompt that begins a task: it holds the tools, if the server's template shows them.
    """

    later: int
    exact: int
    inexact: int
    prompt: int | None
    computed: int | None
    again: int | None
    again_of: int
    opening: int | None = None
    causes: dict[str, int] = field(default_factory=dict)
    needless: int = 0

    @property
    def unknown(self) -> int:
        return self.later - self.exact - self.inexact


def observed(exchanges: Iterable[CapturedExchange], lenses: ReferenceModels) -> list[Prompt]:
    """Prompts as watch mode infers them from what went over the wire.

    An answer that broke off has no counts: it would make all others unknown.
    """
    analyst = ExchangeAnalyzer(lenses)
    try:
        whole = [one for one in exchanges if not (one.has_failed or one.cut)]
        verdicts = [analyst.analyze(exchange) for exchange in whole]
    finally:
        analyst.close()
    return [_inferred(verdict) for verdict in verdicts]


def told(runs: Iterable[Run]) -> list[Prompt]:
    """Prompts as Dovetail itself tells of them, in headers that were asked for."""
    found: list[Prompt] = []
    for run in runs:
        steps = [step for step in run.steps if not (step.refused or step.answered.broke)]
        found += map(_told, steps, (None, *steps[:-1]))
    return found


def sums(prompts: Sequence[Prompt]) -> Prefixes:
    """What a server had in its cache is known where it told so at least once in the same pass.

    The passes use different addresses of it, and some tell at one and are silent at another.
    """
    later = [one for one in prompts if not one.first]
    counted = all(one.prompt is not None for one in prompts) and bool(prompts)
    known = counted and any(one.cached is not None for one in prompts)
    again = [max(0, _computed(one) - one.new) for one in later if known and one.new is not None]
    return Prefixes(
        later=len(later),
        exact=sum(one.exact is True for one in later),
        inexact=sum(one.exact is False for one in later),
        prompt=sum(one.prompt or 0 for one in prompts) if counted else None,
        computed=sum(map(_computed, prompts)) if known else None,
        again=sum(again) if again else None,
        again_of=len(again),
        opening=min((one.prompt for one in prompts if one.first and one.prompt), default=None),
        causes=dict(Counter(one.broke for one in later if one.broke is not None)),
        needless=sum(one.needless for one in later),
    )


def _inferred(verdict: ExchangeAnalysis) -> Prompt:
    first = verdict.place == 1
    sure = verdict.basis == "confirmed" and verdict.exact is not None and not first
    return Prompt(
        first=first,
        exact=verdict.broke is None if sure else None,
        new=verdict.exact.prefill_tokens if sure and verdict.exact is not None else None,
        prompt=verdict.prompt_tokens,
        cached=verdict.cached,
        broke=verdict.broke.code if sure and verdict.broke is not None else None,
        needless=verdict.needless if sure else 0,
    )


def _told(step: Step, before: Step | None) -> Prompt:
    headers = step.answered.exchange.answer_headers
    usage = step.answered.message.usage
    reason = headers.get("x-dovetail-prefix-reason")
    again = headers.get("x-dovetail-prefix-again")
    new: int | None = None
    if before is not None and again is not None:
        known = before.answered.message.usage.total_tokens
        new = int(again) if reason is None else max(0, usage.input_tokens - known)
    return Prompt(
        first=before is None,
        exact=None if new is None else reason is None,
        new=new,
        prompt=usage.input_tokens or None,
        cached=usage.cached_tokens or None,  # 0 is what Dovetail says where nobody tells it
        broke=None if new is None else reason,
    )


def _computed(prompt: Prompt) -> int:
    """Tokens that the server did not have in its cache. What it does not mention it had not."""
    return (prompt.prompt or 0) - (prompt.cached or 0)
