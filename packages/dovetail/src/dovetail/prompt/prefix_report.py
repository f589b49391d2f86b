"""The report of the prefix diagnostics: what two prompts share, where they diverge, and why."""

from dataclasses import dataclass
from typing import Literal, get_args

DivergenceReason = Literal[
    "first", "header", "tools", "switches", "history", "policy", "resume", "retokenization"
]
"""Why a prompt does not extend the last one. A small closed set: it labels a counter."""

DIVERGENCE_REASONS: tuple[str, ...] = get_args(DivergenceReason)

PromptPart = Literal["header", "tools", "switches", "history"]
"""Which part of two prompts differs first."""

_REASON_TEXT: dict[DivergenceReason, str] = {
    "first": "first prompt of the session",
    "header": "the system text changed",
    "tools": "the tool list changed",
    "switches": "the template's switches changed",
    "history": "the history was edited",
    "policy": "the template dropped thoughts",
    "resume": "thoughts were cleared on purpose at a resume",
    "retokenization": "the same request became other tokens",
}


@dataclass(frozen=True)
class PrefixReport:
    """A prompt compared with the last one of its session.

    `common_tokens` leading tokens are those of the last prompt and what was generated on it,
    `prefill_tokens` of `total_tokens` must be prefilled, `reprefilled_tokens` of the last prompt
    and output are no longer a prefix. `reason` is None where nothing diverged. `diverged_at` is
    the first divergent token and `turn` the first changed turn, if a turn changed. `text_before`,
    `old_text` and `new_text` are the text around the divergence: payload, not for logs. The first
    `reused_tokens` tokens were reused from the ledger.

    For a session's first prompt `shared_tokens` is the longest prefix that it shares with a recent
    prompt of another session of the same harness, and `shared_difference` what differs there.
    """

    common_tokens: int
    total_tokens: int
    prefill_tokens: int
    reprefilled_tokens: int = 0
    reason: DivergenceReason | None = None
    diverged_at: int | None = None
    turn: int | None = None
    text_before: str = ""
    old_text: str = ""
    new_text: str = ""
    reused_tokens: int = 0
    shared_tokens: int = 0
    shared_difference: PromptPart | None = None


def describe_prefix(report: PrefixReport, *, payload: bool = False) -> str:
    """Describe a report in one line. With `payload` a second one shows the divergent text."""
    counts = (
        f"{report.common_tokens} of {report.total_tokens} tokens kept, "
        f"{report.prefill_tokens} to prefill"
    )
    if report.reason is None:
        return f"prefix: {counts}"
    meaning = _REASON_TEXT[report.reason]
    if report.reason == "first":
        line = f"prefix: {meaning}, {report.prefill_tokens} tokens to prefill"
        line += (
            f"; {report.shared_tokens} shared with other sessions" if report.shared_tokens else ""
        )
        line += f", then the {report.shared_difference} differs" if report.shared_difference else ""
    else:
        at = "" if report.diverged_at is None else f" at token {report.diverged_at}"
        turn = "" if report.turn is None else f", turn {report.turn}"
        why = f"{report.reason}: {meaning}"
        line = f"prefix: broken{at}{turn} ({why}): {counts}, {report.reprefilled_tokens} lost"
    if payload and report.diverged_at is not None:
        line += (
            f"\n  after {report.text_before!r}: was {report.old_text!r}, now {report.new_text!r}"
        )
    return line


def prefix_headers(report: PrefixReport) -> list[tuple[str, str]]:
    """The report as response headers. They reveal nothing of other sessions, nor any text."""
    values = {
        "common": report.common_tokens,
        "total": report.total_tokens,
        "again": report.prefill_tokens,
        "reason": report.reason,
        "turn": report.turn,
    }
    return [
        (f"x-dovetail-prefix-{name}", str(value))
        for name, value in values.items()
        if value is not None
    ]
