"""What the prefix doctor found out about one prompt, and how it is told."""

from dataclasses import dataclass
from typing import Literal, get_args

DivergenceReason = Literal[
    "first", "header", "tools", "switches", "history", "policy", "resume", "retokenization"
]
"""Why a prompt does not go on from the last one. A small closed set: it labels a counter."""

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
    """A prompt beside the last one of its session.

    `common` leading tokens are those of the last prompt and what was generated on it, `again` of
    `total` must be prefilled, `lost` tokens of the last whole are a prefix no longer. `reason` is
    None where nothing diverged. `at` is the first divergent token and `turn` the first turn that
    is not the same, if it is a turn. `before`, `was` and `now` are the text around `at`: payload,
    not for logs. `reused` leading tokens came from the ledger as they were.

    For a session's first prompt `shared` is the most leading tokens that it has in common with a
    recent prompt of another session of the same harness, and `shared_differs` what differs there.
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
    """A line for people. With `payload` a second one shows the text around the divergence."""
    one = report
    kept = f"{one.common_tokens} of {one.total_tokens} tokens kept, {one.prefill_tokens} to prefill"
    if one.reason is None:
        return f"prefix: {kept}"
    meaning = _REASON_TEXT[one.reason]
    if one.reason == "first":
        line = f"prefix: {meaning}, {one.prefill_tokens} tokens to prefill"
        line += f"; {one.shared_tokens} shared with other sessions" if one.shared_tokens else ""
        line += f", then the {one.shared_difference} differs" if one.shared_difference else ""
    else:
        at = "" if one.diverged_at is None else f" at token {one.diverged_at}"
        turn = "" if one.turn is None else f", turn {one.turn}"
        why = f"{one.reason}: {meaning}"
        line = f"prefix: broken{at}{turn} ({why}): {kept}, {one.reprefilled_tokens} lost"
    if payload and one.diverged_at is not None:
        line += f"\n  after {one.text_before!r}: was {one.old_text!r}, now {one.new_text!r}"
    return line


def prefix_headers(report: PrefixReport) -> list[tuple[str, str]]:
    """Response headers. Nothing in them tells about other sessions, or any text."""
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
