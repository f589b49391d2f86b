"""The match of a history with the ledger: the recognized entry and the hash chains per turn.

There are two chains. The visible chain is the key for looking up entries. The lineage is the chain
over the recognized entries or, for unrecognized turns, the client's copies with their reasoning.
Histories that differ only in reasoning have the same visible chain and different lineages.
"""

from bisect import bisect_left
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from dovetail.ledger.entry import LedgerEntry
from dovetail.ledger.ledger import StoreVersion
from dovetail.ledger.turn_digest import DIGEST_BYTES, TurnDigest, compute_digest, extend_chain
from dovetail.storage.lru import LruCache
from dovetail_model import Turn

EMPTY_CHAIN = bytes(DIGEST_BYTES)
_MAX_HISTORIES = 256
_MAX_CHARS = 128 << 20  # of the turns of all histories
HistoryKey = tuple[str, str, bytes]
"""Tenant, session, and digest of the first turn."""


@dataclass(frozen=True, slots=True)
class TurnMatch:
    """The entry as which a turn was recognized, if any.

    A match by handle is final; a match by chain is valid until a second entry has the same chain.
    `chain` is the visible chain including the turn, as recorded in the entry.
    """

    chain: bytes
    entry_id: str | None
    matched_by: Literal["handle", "chain", "nothing"]


@dataclass(frozen=True, slots=True)
class MatchStep:
    """One turn of a match.

    `chain_before`, `lineage_before`: the chains before the turn.
    `lineage`: the lineage including the turn.
    `call_count`: the number of calls in earlier turns.
    `chars`: the number of characters of all turns up to this one.
    `tools_changed`: whether a turn up to this one changes the available tools.
    `has_media`: whether a turn up to this one has images or documents.
    """

    chain_before: bytes
    lineage_before: bytes
    match: TurnMatch
    lineage: bytes
    call_count: int
    chars: int = 0
    tools_changed: bool = False
    has_media: bool = False

    @property
    def chain(self) -> bytes:
        return self.match.chain

    def has_ancestry_of(self, entry: LedgerEntry, head: bytes) -> bool:
        """Return whether the turn and the entry have the same history and head."""
        return (entry.lineage, entry.head) == (self.lineage_before, head)


def next_step(
    key: bytes, last: MatchStep | None, call_count: int, turn_digest: TurnDigest, match: TurnMatch
) -> MatchStep:
    """Build the next step. An unknown turn is identified by the digest of the client's copy."""
    chain_before = last.chain if last is not None else EMPTY_CHAIN
    lineage_before = last.lineage if last is not None else EMPTY_CHAIN
    identity = match.entry_id.encode() if match.entry_id is not None else turn_digest.copy_digest
    chars = turn_digest.chars + (last.chars if last is not None else 0)
    return MatchStep(
        chain_before,
        lineage_before,
        match,
        extend_chain(key, lineage_before, compute_digest(turn_digest.digest, identity)),
        call_count,
        chars,
        turn_digest.changes_tools or (last is not None and last.tools_changed),
        turn_digest.has_media or (last is not None and last.has_media),
    )


class HistoryMatch:
    """The match of a history, one step per turn.

    `assistant_indexes`: the indexes of assistant turns.
    `chain_matched_indexes`: the indexes of turns that were matched by chain alone.
    `partial_entry`: the entry of a last turn that the model is to continue.
    `ledger_state`: the state of the ledger when the chain matches were last looked up.
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
        # The version of the store and the sequence of the ledger.
        self.ledger_state: tuple[StoreVersion | None, int] = (None, 0)

    def truncate(self, turns: tuple[Turn, ...], count: int) -> "HistoryMatch":
        """Copy the first `count` steps for a history that begins with the same `count` turns."""
        truncated = HistoryMatch(turns)
        truncated.steps = self.steps[:count]
        truncated.chains = self.chains[:count]
        truncated.assistant_indexes = self.assistant_indexes[
            : bisect_left(self.assistant_indexes, count)
        ]
        truncated.chain_matched_indexes = self.chain_matched_indexes[
            : bisect_left(self.chain_matched_indexes, count)
        ]
        truncated.ledger_state = self.ledger_state
        return truncated

    def truncate_at_unknown(self) -> "HistoryMatch":
        """Truncate at the first assistant turn that was not recognized."""
        unknown = (at for at in self.assistant_indexes if self.steps[at].match.entry_id is None)
        first = next(unknown, None)
        return self if first is None else self.truncate(self.turns, first)

    @property
    def last(self) -> MatchStep | None:
        return self.steps[-1] if self.steps else None

    @property
    def chars(self) -> int:
        """The number of characters of the matched turns."""
        return self.steps[-1].chars if self.steps else 0

    @property
    def tools_changed(self) -> bool:
        """Whether a matched turn changes the available tools."""
        return bool(self.steps) and self.steps[-1].tools_changed

    @property
    def has_media(self) -> bool:
        """Whether a matched turn has images or documents."""
        return bool(self.steps) and self.steps[-1].has_media

    def entry_positions(self) -> dict[str, int]:
        """Return the index of each recognized turn by its entry id."""
        steps = ((self.steps[at].match.entry_id, at) for at in self.assistant_indexes)
        return {id: at for id, at in steps if id is not None}

    def add(self, step: MatchStep) -> None:
        at = len(self.steps)
        if self.turns[at].role == "assistant":
            self.assistant_indexes.append(at)
            if step.match.matched_by == "chain":
                self.chain_matched_indexes.append(at)
        self.steps.append(step)
        self.chains.append(step.chain)


class HistoryMatchCache:
    """The last match of each history, limited in number and in characters."""

    __slots__ = ("_matches",)

    def __init__(self, max_chars: int = _MAX_CHARS) -> None:
        self._matches: LruCache[HistoryKey, HistoryMatch] = LruCache(
            _MAX_HISTORIES, max_size=max_chars, size_of=attrgetter("chars")
        )

    def resume(self, key: HistoryKey, turns: tuple[Turn, ...]) -> HistoryMatch:
        """Return the known steps of these turns. Comparing is cheap: known turns are identical.

        The last turns are looked up again, since they may have been recorded meanwhile.
        """
        known = self._matches.peek(key)
        if known is None:
            return HistoryMatch(turns)
        same = min(len(known.turns) - 2, len(turns))
        while same > 0 and known.turns[:same] != turns[:same]:
            same //= 2
        return known.truncate(turns, max(same, 0))

    def put(self, key: HistoryKey, match: HistoryMatch) -> None:
        self._matches.put(key, match)
