"""Sums over exchanges, for each session and for all."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from dovetail.storage.lru import LruCache

TokenBasis = Literal["confirmed", "counted", "estimated"]
"""How sure a number of tokens is.

`confirmed`: made with the model's own tokenizer and template, and the server counted the same, in
the prompt and in the answer before it. `counted`: made with them, and the server gave no count.
`estimated`: the server counted otherwise, the tokens of the answer before are a guess, or there is
no tokenizer.
"""

FindingCode = Literal[
    "billing",
    "volatile",
    "system",
    "tools",
    "switches",
    "history",
    "thoughts_not_returned",
    "thoughts_not_read",
    "policy",
    "rewritten",
    "regrouped",
    "retokenization",
    "call_as_text",
]
"""What went wrong. A small closed set: sums are kept by it."""


class TrafficFinding(msgspec.Struct, frozen=True):
    """One thing that went wrong, in words. `detail` may quote a line of the conversation."""

    code: FindingCode
    detail: str = ""


class PromptPrefix(msgspec.Struct, frozen=True):
    """A prompt of `total` tokens, the first `kept` of which were computed before."""

    total: int
    kept: int

    @property
    def prefill_tokens(self) -> int:
        return self.total - self.kept


class ExchangeAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange.

    `served` is the prompt as a server with a perfect prefix cache had to compute it, `exact` the
    same with Dovetail. `needless` tokens were computed again and need not have been,
    `broke` says why; other findings cost no tokens by themselves. Where the exchange was answered
    by Dovetail itself (`fixed`), `served` is what the server would have had to do, and `needless`
    what was saved.

    `prompt_tokens`, `output_tokens` and `cached` are the server's own numbers, where it tells them.
    Times are seconds: `dispatch` from each complete call to the end of its answer, `tool_gap` from
    the first complete call of the answer before to this request.
    """

    number: int
    session: str
    place: int
    api: str
    model: str
    status: int
    began: float
    duration: float
    streamed: bool
    fixed: bool = False
    cut: bool = False
    first: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached: int | None = None
    basis: TokenBasis = "estimated"
    served: PromptPrefix | None = None
    exact: PromptPrefix | None = None
    needless: int = 0
    broke: TrafficFinding | None = None
    findings: tuple[TrafficFinding, ...] = ()
    thought: bool = False
    calls: int = 0
    dispatch: tuple[float, ...] = ()
    tool_gap: float | None = None
    unread: str = ""


_MAX_RECENT_EXCHANGES = 10_000  # exchanges that are told one by one
_MAX_SESSIONS = 1000  # that are told one by one
_MAX_TIME_SAMPLES = 10_000  # of which medians are taken
_MAX_TALLY_NAMES = 100  # in a tally: it is clients who choose them


@dataclass
class TrafficTotals:
    """What a session, or all of them, amounts to.

    `prefilled` are the tokens that the server had to compute, `needless` those of them that
    Dovetail would not have. `costs` are needless tokens by the cause that broke the prefix,
    `counts` how often each was found, and `examples` a detail of each. `bases` count how sure the
    numbers are.
    """

    label: str = ""
    requests: int = 0
    failed: int = 0
    unread: int = 0
    fixed: int = 0
    prompt: int = 0
    prefilled: int = 0
    needless: int = 0
    told_prompt: int = 0
    told_cached: int = 0
    tells_cached: bool = False
    thoughts: int = 0
    calls: int = 0
    bases: Counter[TokenBasis] = field(default_factory=Counter)
    costs: Counter[FindingCode] = field(default_factory=Counter)
    counts: Counter[FindingCode] = field(default_factory=Counter)
    examples: dict[FindingCode, str] = field(default_factory=dict)
    dispatch: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_TIME_SAMPLES))
    tool_gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_TIME_SAMPLES))
    apis: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)

    @property
    def has_estimates(self) -> bool:
        """Whether any number in it is an estimate."""
        return self.bases["estimated"] + self.bases["counted"] > 0

    def add(self, verdict: ExchangeAnalysis) -> None:
        self.requests += 1
        self.failed += verdict.status >= 400 or verdict.status == 0
        self.unread += bool(verdict.unread)
        self.fixed += verdict.fixed
        self.apis[verdict.api] += 1
        if verdict.model:
            count_name(self.models, verdict.model)
        self.thoughts += verdict.thought
        self.calls += verdict.calls
        self.dispatch += verdict.dispatch
        self.tool_gaps += [] if verdict.tool_gap is None else [verdict.tool_gap]
        self._add_tokens(verdict)
        for finding in (verdict.broke, *verdict.findings):
            if finding is not None:
                self._add_finding(finding)

    def _add_tokens(self, verdict: ExchangeAnalysis) -> None:
        if verdict.cached is not None and verdict.prompt_tokens is not None:
            self.tells_cached = True
            self.told_prompt += verdict.prompt_tokens
            self.told_cached += verdict.cached
        if verdict.served is None or verdict.exact is None:
            return
        self.prompt += verdict.served.total
        self.prefilled += verdict.served.prefill_tokens
        self.needless += verdict.needless
        self.bases[verdict.basis] += 1
        if verdict.broke is not None:
            self.costs[verdict.broke.code] += verdict.needless

    def _add_finding(self, finding: TrafficFinding) -> None:
        self.counts[finding.code] += 1
        if finding.detail:
            self.examples.setdefault(finding.code, finding.detail)


class TrafficSummary:
    """The newest sessions, in the order in which they began, the whole, and the newest exchanges.

    `begun` counts all sessions.
    """

    def __init__(self, verdicts: Iterable[ExchangeAnalysis] = ()) -> None:
        self.recent: deque[ExchangeAnalysis] = deque(maxlen=_MAX_RECENT_EXCHANGES)
        self.total = TrafficTotals("all")
        self.sessions: LruCache[str, TrafficTotals] = LruCache(_MAX_SESSIONS)
        self.session_count = 0
        for verdict in verdicts:
            self.add(verdict)

    def add(self, verdict: ExchangeAnalysis) -> None:
        self.recent.append(verdict)
        self.total.add(verdict)
        sums = self.sessions.peek(verdict.session)
        if sums is None:
            sums = TrafficTotals(verdict.session)
            self.sessions.put(verdict.session, sums)
            self.session_count += 1
        sums.add(verdict)


def count_name(counts: Counter[str], name: str) -> None:
    """Counts a name that somebody else chose. Beyond a hundred of them they count as others."""
    counts[name if name in counts or len(counts) < _MAX_TALLY_NAMES else "others"] += 1


def median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
