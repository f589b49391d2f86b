"""What the prefix doctor found out about one prompt, and how it is told."""

from dataclasses import dataclass
from typing import Literal, get_args

Reason = Literal[
    "first", "header", "tools", "switches", "history", "policy", "resume", "retokenization"
]
"""Why a prompt does not go on from the last one. A small closed set: it labels a counter."""

REASONS: tuple[str, ...] = get_args(Reason)

Part = Literal["header", "tools", "switches", "history"]
"""Which part of two prompts differs first."""

_MEANING: dict[Reason, str] = {
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
class Diagnosis:
    """A prompt beside the last one of its session.

    `common` leading tokens are those of the last prompt and what was generated on it, `again` of
    `total` must be prefilled, `lost` tokens of the last whole are a prefix no longer. `reason` is
    None where nothing diverged. `at` is the first divergent token and `turn` the first turn that
    is not the same, if it is a turn. `before`, `was` and `now` are the text around `at`: payload,
    not for logs. `reused` leading tokens came from the ledger as they were.

    For a session's first prompt `shared` is the most leading tokens that it has in common with a
    recent prompt of another session of the same harness, and `shared_differs` what differs there.
    """

    common: int
    total: int
    again: int
    lost: int = 0
    reason: Reason | None = None
    at: int | None = None
    turn: int | None = None
    before: str = ""
    was: str = ""
    now: str = ""
    reused: int = 0
    shared: int = 0
    shared_differs: Part | None = None


def describe(diagnosis: Diagnosis, *, payload: bool = False) -> str:
    """A line for people. With `payload` a second one shows the text around the divergence."""
    one = diagnosis
    kept = f"{one.common} of {one.total} tokens kept, {one.again} to prefill"
    if one.reason is None:
        return f"prefix: {kept}"
    meaning = _MEANING[one.reason]
    if one.reason == "first":
        line = f"prefix: {meaning}, {one.again} tokens to prefill"
        line += f"; {one.shared} shared with other sessions" if one.shared else ""
        line += f", then the {one.shared_differs} differs" if one.shared_differs else ""
    else:
        at = "" if one.at is None else f" at token {one.at}"
        turn = "" if one.turn is None else f", turn {one.turn}"
        why = f"{one.reason}: {meaning}"
        line = f"prefix: broken{at}{turn} ({why}): {kept}, {one.lost} lost"
    if payload and one.at is not None:
        line += f"\n  after {one.before!r}: was {one.was!r}, now {one.now!r}"
    return line


def headers(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Response headers. Nothing in them tells about other sessions, or any text."""
    values = {
        "common": diagnosis.common,
        "total": diagnosis.total,
        "again": diagnosis.again,
        "reason": diagnosis.reason,
        "turn": diagnosis.turn,
    }
    return [
        (f"x-dovetail-prefix-{name}", str(value))
        for name, value in values.items()
        if value is not None
    ]
