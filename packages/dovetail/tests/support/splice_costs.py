"""Counts of right, wrong and missed splices, and what the rule of decision 10 costs.

Each lookup by visible text is also decided by the earlier rule, which accepts the only known
candidate, so that both rules are compared over the same histories.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from unittest.mock import patch

from dovetail.ledger import recognition
from dovetail.ledger.candidates import accept_unique, single_candidate
from dovetail.ledger.entry import LedgerEntry
from dovetail.ledger.ledger import ChainCandidates
from dovetail_model import Turn

Rule = Literal["current", "earlier"]
Fate = Literal["open", "crashed", "interrupted", "unrecorded", "stored"]
Cause = Literal[
    "no response",
    "crashed turn",
    "interrupted turn",
    "unrecorded turn",
    "open turn",
    "evicted turn",
    "gap",
    "expired lease",
]


class ChainMatch(NamedTuple):
    """A lookup by visible text with one candidate, `earlier`, which may have been refused."""

    earlier: str
    accepted: str | None
    found: ChainCandidates


# By chain: the lookups of the request that the task prepares.
lookups: ContextVar[dict[bytes, ChainMatch]] = ContextVar("lookups")


@contextmanager
def observed_lookups(rule: Rule = "current") -> Iterator[None]:
    """Collect the lookups by visible text, and decide them by a rule."""

    def accept(
        found: ChainCandidates, turn: Turn, model: str, session: str | None, notes: list[str]
    ) -> LedgerEntry | None:
        entry = accept_unique(found, turn, model, session, notes)
        same_model = [entry for entry in found.entries if entry.model == model]
        earlier = single_candidate(same_model, [])
        if earlier is not None:
            match = ChainMatch(earlier.id, entry.id if entry is not None else None, found)
            lookups.get()[earlier.chain] = match
        return entry if rule == "current" else earlier

    with patch.object(recognition, "accept_unique", accept):
        yield


def find_cause(found: ChainCandidates, fates: dict[str, Fate], *, has_gap: bool) -> Cause:
    """Return why a match was refused. `has_gap`: there is a gap, not only an expired lease."""
    if not found.responded:
        return "no response"
    marked = {fates[mark.id] for mark in found.marks if mark.id}
    for fate in ("crashed", "interrupted", "unrecorded", "open"):
        if fate in marked:
            return f"{fate} turn"  # type: ignore[return-value]
    if found.marks:
        return "evicted turn"
    return "gap" if has_gap else "expired lease"


@dataclass
class Result:
    """Counts over histories.

    `turns`: replayed turns, whose reasoning the client dropped.
    `right`: those whose own reasoning is in the prompt.
    `wrong`: those with the reasoning of another turn.
    `other_branch`: those with the reasoning of another turn of the session that the client named.
    `earlier_right`, `earlier_wrong`: the same with the earlier rule.
    `missed`: turns that only the earlier rule splices, correctly, by the cause of the refusal.
    `failures`: descriptions of the wrong splices.
    """

    histories: int = 0
    crashes: int = 0
    turns: int = 0
    right: int = 0
    wrong: int = 0
    other_branch: int = 0
    earlier_right: int = 0
    earlier_wrong: int = 0
    missed: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, other: "Result") -> None:
        for name in self.__dataclass_fields__:
            if name != "missed":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        for cause, count in other.missed.items():
            self.add_missed(cause, count)

    def add_missed(self, cause: str, count: int = 1) -> None:
        self.missed[cause] = self.missed.get(cause, 0) + count

    @property
    def missed_share(self) -> float:
        """The share of missed splices in those that the earlier rule makes correctly."""
        return sum(self.missed.values()) / max(self.earlier_right, 1)
