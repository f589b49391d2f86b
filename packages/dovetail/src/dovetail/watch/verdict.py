"""What watching found out about one exchange."""

from typing import Literal

import msgspec

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
