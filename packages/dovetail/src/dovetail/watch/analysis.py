"""Results of the analysis of exchanges, and totals per session and overall."""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Literal

import msgspec

from dovetail.storage.lru import LruCache

TokenBasis = Literal["confirmed", "counted", "estimated"]
"""How reliable a number of tokens is.

`confirmed`: computed with the model's own tokenizer and template, and equal to the server's counts
for the prompt and for the previous response. `counted`: computed with them, and the server reports
no counts. `estimated`: the server reports different counts, the tokens of the previous response are
a guess, or the tokenizer is not available.
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
"""Kind of problem: a closed set, used as keys of totals."""


class TrafficFinding(msgspec.Struct, frozen=True):
    """One problem. `detail` may quote a line of the conversation."""

    code: FindingCode
    detail: str = ""


class PromptPrefix(msgspec.Struct, frozen=True):
    """A prompt of `total` tokens, the first `reused` of which were computed before."""

    total: int
    reused: int = msgspec.field(name="kept")

    @property
    def prefill_tokens(self) -> int:
        return self.total - self.reused


class ExchangeAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange, as in the JSON report.

    `served` is the prompt as a server with a perfect prefix cache had to compute it, `exact` the
    same with Dovetail. `needless` tokens were computed again although they could have been cached,
    `broke` is why; other findings cost no tokens by themselves. If Dovetail itself responded
    (`fixed`), `served` is what the server would have computed, and `needless` what was saved.

    `prompt_tokens`, `output_tokens` and `cached` are the server's own numbers, if it reports them.
    Times are seconds: `dispatch` from each complete call to the end of its response, `tool_gap`
    from the first complete call of the previous response to this request.
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
    truncated: bool = msgspec.field(default=False, name="cut")
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
    has_reasoning: bool = msgspec.field(default=False, name="thought")
    calls: int = 0
    dispatch: tuple[float, ...] = ()
    tool_gap: float | None = None
    unread: str = ""


_MAX_RECENT_EXCHANGES = 10_000  # listed one by one
_MAX_SESSIONS = 1000  # listed one by one
_MAX_TIME_SAMPLES = 10_000  # of medians
_MAX_TALLY_NAMES = 100  # in a tally: clients choose them


class TrafficTotals(msgspec.Struct):
    """Totals of a session, or of all, as in the JSON report.

    `prefilled` are the tokens that the server had to compute, `needless` those of them that
    Dovetail would have avoided. `costs` are needless tokens by the cause that broke the prefix,
    `counts` how often each was found, and `examples` a detail of each. `bases` counts the
    reliability of numbers.
    """

    label: str = ""
    requests: int = 0
    failed: int = 0
    unread: int = 0
    fixed: int = 0
    prompt: int = 0
    prefilled: int = 0
    needless: int = 0
    reported_prompt_tokens: int = msgspec.field(default=0, name="told_prompt")
    reported_cached_tokens: int = msgspec.field(default=0, name="told_cached")
    reports_cached: bool = msgspec.field(default=False, name="tells_cached")
    reasoning_responses: int = msgspec.field(default=0, name="thoughts")
    calls: int = 0
    bases: Counter[TokenBasis] = msgspec.field(default_factory=Counter)
    costs: Counter[FindingCode] = msgspec.field(default_factory=Counter)
    counts: Counter[FindingCode] = msgspec.field(default_factory=Counter)
    examples: dict[FindingCode, str] = msgspec.field(default_factory=dict)
    dispatch: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=_MAX_TIME_SAMPLES))
    tool_gaps: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=_MAX_TIME_SAMPLES))
    apis: Counter[str] = msgspec.field(default_factory=Counter)
    models: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def has_estimates(self) -> bool:
        """Whether any of its numbers is an estimate."""
        return self.bases["estimated"] + self.bases["counted"] > 0

    def add(self, analysis: ExchangeAnalysis) -> None:
        self.requests += 1
        self.failed += analysis.status >= 400 or analysis.status == 0
        self.unread += bool(analysis.unread)
        self.fixed += analysis.fixed
        self.apis[analysis.api] += 1
        if analysis.model:
            count_name(self.models, analysis.model)
        self.reasoning_responses += analysis.has_reasoning
        self.calls += analysis.calls
        self.dispatch += analysis.dispatch
        self.tool_gaps += [] if analysis.tool_gap is None else [analysis.tool_gap]
        self._add_tokens(analysis)
        for finding in (analysis.broke, *analysis.findings):
            if finding is not None:
                self._add_finding(finding)

    def _add_tokens(self, analysis: ExchangeAnalysis) -> None:
        if analysis.cached is not None and analysis.prompt_tokens is not None:
            self.reports_cached = True
            self.reported_prompt_tokens += analysis.prompt_tokens
            self.reported_cached_tokens += analysis.cached
        if analysis.served is None or analysis.exact is None:
            return
        self.prompt += analysis.served.total
        self.prefilled += analysis.served.prefill_tokens
        self.needless += analysis.needless
        self.bases[analysis.basis] += 1
        if analysis.broke is not None:
            self.costs[analysis.broke.code] += analysis.needless

    def _add_finding(self, finding: TrafficFinding) -> None:
        self.counts[finding.code] += 1
        if finding.detail:
            self.examples.setdefault(finding.code, finding.detail)


class TrafficSummary:
    """The latest sessions in order of their start, the overall totals, and the latest exchanges.

    `session_count` counts all sessions.
    """

    def __init__(self, analyses: Iterable[ExchangeAnalysis] = ()) -> None:
        self.recent: deque[ExchangeAnalysis] = deque(maxlen=_MAX_RECENT_EXCHANGES)
        self.total = TrafficTotals("all")
        self.sessions: LruCache[str, TrafficTotals] = LruCache(_MAX_SESSIONS)
        self.session_count = 0
        for analysis in analyses:
            self.add(analysis)

    def add(self, analysis: ExchangeAnalysis) -> None:
        self.recent.append(analysis)
        self.total.add(analysis)
        totals = self.sessions.peek(analysis.session)
        if totals is None:
            totals = TrafficTotals(analysis.session)
            self.sessions.put(analysis.session, totals)
            self.session_count += 1
        totals.add(analysis)


def count_name(counts: Counter[str], name: str) -> None:
    """Count a name that a client chose. Names beyond the limit are counted as "others"."""
    counts[name if name in counts or len(counts) < _MAX_TALLY_NAMES else "others"] += 1


def median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
