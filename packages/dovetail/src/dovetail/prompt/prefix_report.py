"""The report of the prefix diagnostics: the common prefix of two prompts and their divergence."""

from dataclasses import dataclass
from typing import Literal, get_args

DivergenceReason = Literal[
    "first",
    "header",
    "tools",
    "switches",
    "history",
    "policy",
    "resume",
    "edit",
    "retokenization",
]
"""Why a prompt does not extend the last one. A closed set, since it labels a counter."""

DIVERGENCE_REASONS: tuple[str, ...] = get_args(DivergenceReason)

PromptPart = Literal["header", "tools", "switches", "history"]
"""The first part in which two prompts differ."""

_REASON_TEXT: dict[DivergenceReason, str] = {
    "first": "first prompt of the session",
    "header": "the system text changed",
    "tools": "the tool list changed",
    "switches": "the template switches changed",
    "history": "the history was edited",
    "policy": "the template or the retention setting dropped reasoning",
    "resume": "the resume policy cleared reasoning",
    "edit": "a context edit or a truncation changed the history",
    "retokenization": "the same text was tokenized differently",
}


@dataclass(frozen=True)
class PrefixReport:
    """A prompt compared with the last one of its session.

    `common_tokens`: leading tokens that equal those of the last prompt and its output.
    `total_tokens`: the tokens of the prompt.
    `prefill_tokens`: the tokens of the prompt that must be prefilled.
    `reprefilled_tokens`: tokens of the last prompt and its output that are no longer a prefix.
    `reason`: None if the prompt did not diverge.
    `diverged_at`: the index of the first divergent token.
    `turn`: the index of the first changed turn, if a turn changed.
    `text_before`, `old_text`, `new_text`: the text around the divergence. Payload, not for logs.
    `reused_tokens`: the number of leading tokens that were reused from the ledger.
    `shared_tokens`: for the first prompt of a session, the longest common prefix with a recent
    prompt of another session of the same harness.
    `shared_difference`: the part in which the two differ.
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
    """Describe a report in one line. With `payload`, a second line shows the divergent text."""
    counts = (
        f"{report.common_tokens} of {report.total_tokens} tokens unchanged, "
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
        again = f"{report.reprefilled_tokens} re-prefilled"
        line = f"prefix: diverged{at}{turn} ({why}): {counts}, {again}"
    if payload and report.diverged_at is not None:
        line += (
            f"\n  after {report.text_before!r}: was {report.old_text!r}, now {report.new_text!r}"
        )
    return line


def divergence_text(report: PrefixReport) -> tuple[str, str, str] | None:
    """Return the text before the divergence, the old and the new text. Payload, not for logs."""
    if report.diverged_at is None:
        return None
    return report.text_before, report.old_text, report.new_text


def prefix_headers(report: PrefixReport) -> list[tuple[str, str]]:
    """Return the report as response headers, without text and without data of other sessions."""
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
