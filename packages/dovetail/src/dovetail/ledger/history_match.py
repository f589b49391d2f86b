"""The walk along a history: turn by turn, which entry it is and what the chain has come to.

Two chains. The visible one is what entries are looked up by. The line is over what the turns were
taken for: the entry, where one was recognised, else the client's own copy with its thoughts. Two
histories that look the same and were thought otherwise have the same chain and another line.
"""

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from dovetail.ledger.entry import LedgerEntry
from dovetail.ledger.turn_digest import DIGEST_BYTES, TurnDigest, compute_digest, extend_chain
from dovetail_model import Turn

EMPTY_CHAIN = bytes(DIGEST_BYTES)
_MAX_HISTORIES = 256
_MAX_CHARS = 128 << 20  # of all turns of all lines together
HistoryKey = tuple[str, str, bytes]
"""Tenant, session, and the digest of the first turn."""


@dataclass(frozen=True, slots=True)
class TurnMatch:
    """What a turn was recognised as. By its handle for good; by its looks until a double appears.

    `chain` is the visible chain with the turn in it, as the entry has it.
    """

    chain: bytes
    entry_id: str | None
    matched_by: Literal["handle", "chain", "nothing"]


@dataclass(frozen=True, slots=True)
class MatchStep:
    """One turn of a walk: both chains before and with it, and the calls in the turns before it.

    `size` are the characters of all turns up to it.
    """

    chain_before: bytes
    lineage_before: bytes
    match: TurnMatch
    lineage: bytes
    call_count: int
    chars: int = 0

    @property
    def chain(self) -> bytes:
        return self.match.chain


def next_step(
    key: bytes, last: MatchStep | None, call_count: int, turn_digest: TurnDigest, match: TurnMatch
) -> MatchStep:
    """The next step. A turn that is not known is told apart by the client's own copy of it."""
    before = last.chain if last is not None else EMPTY_CHAIN
    line = last.lineage if last is not None else EMPTY_CHAIN
    taken = match.entry_id.encode() if match.entry_id is not None else turn_digest.copy_digest
    size = turn_digest.chars + (last.chars if last is not None else 0)
    return MatchStep(
        before,
        line,
        match,
        extend_chain(key, line, compute_digest(turn_digest.digest, taken)),
        call_count,
        size,
    )


class HistoryMatch:
    """The steps along a history, with what is asked of them kept beside: a session grows long.

    `places` are those of assistant turns, `looks` of those known by their looks alone. `begun` is
    the entry of a turn behind them that the model is to go on from. `seen_at` says how far the
    ledger was when those with looks alone were last looked for.
    """

    __slots__ = (
        "assistant_indexes",
        "chain_matched_indexes",
        "chains",
        "ledger_state",
        "notes",
        "partial_entry",
        "steps",
        "turns",
    )

    def __init__(self, turns: tuple[Turn, ...]) -> None:
        self.turns = turns
        self.steps: list[MatchStep] = []
        self.chains: list[bytes] = []
        self.assistant_indexes: list[int] = []
        self.chain_matched_indexes: list[int] = []
        self.notes: list[str] = []
        self.partial_entry: LedgerEntry | None = None
        self.ledger_state: tuple[int | None, int] = (None, 0)  # the ledger's state at its end

    def truncate(self, turns: tuple[Turn, ...], count: int) -> "HistoryMatch":
        """A walk along other turns that begin with the same `count`."""
        other = HistoryMatch(turns)
        other.steps = self.steps[:count]
        other.chains = self.chains[:count]
        other.assistant_indexes = self.assistant_indexes[
            : bisect_left(self.assistant_indexes, count)
        ]
        other.chain_matched_indexes = self.chain_matched_indexes[
            : bisect_left(self.chain_matched_indexes, count)
        ]
        other.ledger_state = self.ledger_state
        return other

    def truncate_at_unknown(self) -> "HistoryMatch":
        """The walk up to the first of the model's turns that nobody knows yet."""
        unknown = (at for at in self.assistant_indexes if self.steps[at].match.entry_id is None)
        first = next(unknown, None)
        return self if first is None else self.truncate(self.turns, first)

    @property
    def last(self) -> MatchStep | None:
        return self.steps[-1] if self.steps else None

    @property
    def chars(self) -> int:
        """Characters of its turns."""
        return self.steps[-1].chars if self.steps else 0

    def add(self, step: MatchStep) -> None:
        at = len(self.steps)
        if self.turns[at].role == "assistant":
            self.assistant_indexes.append(at)
            if step.match.matched_by == "chain":
                self.chain_matched_indexes.append(at)
        self.steps.append(step)
        self.chains.append(step.chain)


class HistoryMatchCache:
    """The last walk of each line of a session, to go on from: so many, of so many characters."""

    __slots__ = ("_chars", "_matches", "_max_chars")

    def __init__(self, max_chars: int = _MAX_CHARS) -> None:
        self._matches: OrderedDict[HistoryKey, HistoryMatch] = OrderedDict()
        self._max_chars = max_chars
        self._chars = 0

    def resume(self, key: HistoryKey, turns: tuple[Turn, ...]) -> HistoryMatch:
        """The steps that these turns begin with. Known turns are the same objects: it costs little.

        The last turns are looked up again: they may be known by now.
        """
        known = self._matches.get(key)
        if known is None:
            return HistoryMatch(turns)
        same = min(len(known.turns) - 2, len(turns))
        while same > 0 and known.turns[:same] != turns[:same]:
            same //= 2
        return known.truncate(turns, max(same, 0))

    def put(self, key: HistoryKey, match: HistoryMatch) -> None:
        before = self._matches.pop(key, None)
        self._chars += match.chars - (before.chars if before is not None else 0)
        self._matches[key] = match
        while len(self._matches) > _MAX_HISTORIES or self._chars > self._max_chars:
            self._chars -= self._matches.popitem(last=False)[1].chars
