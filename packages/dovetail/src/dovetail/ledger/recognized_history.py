"""What recognition finds of a history, and the scope in which it looks."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dovetail.ledger.cache import SharedTokenIds
from dovetail.ledger.entry import LedgerEntry, has_reasoning
from dovetail.ledger.history_match import EMPTY_CHAIN
from dovetail_model import ToolCallBlock, ToolSpec, Turn


@dataclass(frozen=True)
class RecognizedHistory:
    """The recognized part of a history.

    `chain`, `lineage`: the chain and the lineage after the last turn.
    `entries`: the entries of assistant turns, by turn index.
    `parent`, `parent_index`: the last entry whose token ids are available, and its index.
    `parent_token_ids`: the prompt and the generated tokens of the parent.
    `anchor_index`: the index of the parent if the new prompt extends its token ids, else None.
    `base_prompt`: the index and the prompt of a turn that followed a user turn, if everything
    before it is unchanged.
    `call_count`: the number of calls before the anchor or the base.
    `partial_entry`: the entry of a last turn that the model is to continue.
    `start`: the start of the scope.
    `forced_until`: turns before it keep their reasoning even if the template would drop it.
    `without_reasoning`: the turns whose reasoning is not part of the prompt.
    """

    chain: bytes = EMPTY_CHAIN
    lineage: bytes = EMPTY_CHAIN
    digests: tuple[bytes, ...] = ()
    entries: dict[int, LedgerEntry] = field(default_factory=dict)
    anchor_index: int | None = None
    parent_token_ids: SharedTokenIds | None = None
    parent: LedgerEntry | None = None
    notes: tuple[str, ...] = ()
    call_count: int = 0
    base_prompt: "tuple[int, array[int]] | None" = None
    partial_entry: LedgerEntry | None = None
    start: int = 0
    parent_index: int | None = None
    forced_until: int = 0
    without_reasoning: frozenset[int] = frozenset()

    def select_turns(self, indexes: Sequence[int], turns: Sequence[Turn]) -> "RecognizedHistory":
        """Convert to a history of some turns. `indexes` are the old indexes of `turns`."""
        new = {old: at for at, old in enumerate(indexes)}
        anchor = None if self.anchor_index is None else new.get(self.anchor_index)
        base = self.base_prompt
        base = None if base is None or base[0] not in new else (new[base[0]], base[1])
        first = anchor if anchor is not None else base[0] if base is not None else 0
        calls = (b for turn in turns[:first] for b in turn.blocks if isinstance(b, ToolCallBlock))
        return replace(
            self,
            entries={new[at]: entry for at, entry in self.entries.items() if at in new},
            anchor_index=anchor,
            base_prompt=base,
            call_count=sum(1 for _ in calls),
            start=bisect_left(indexes, self.start),
            parent_index=None if self.parent_index is None else new.get(self.parent_index),
            forced_until=bisect_left(indexes, self.forced_until),
            without_reasoning=frozenset(new[at] for at in self.without_reasoning if at in new),
        )

    def without_entries(self, start: int | None = None) -> "RecognizedHistory":
        """Copy the history without its entries: only a common prefix with the parent is reused.

        With `start`, turns from there on retain their entries; the template renders earlier turns.
        """
        if start is None:
            return replace(self, entries={}, anchor_index=None, base_prompt=None)
        entries = {at: entry for at, entry in self.entries.items() if at >= start}
        return replace(self, entries=entries, anchor_index=None, base_prompt=None, start=start)


@dataclass(frozen=True)
class RecognitionScope:
    """The tenant, model and tools for a look-up. Turns before `start` are always rendered again.

    `head` and all after `start` do not affect recognition, only the decision which tokens to reuse.

    `without_reasoning`, `without_arguments`: the turns whose reasoning or arguments are removed.
    `forced_until`: see `RecognizedHistory`.
    """

    tenant: str
    chain_key: bytes
    model: str
    head: bytes = b""
    tools: Sequence[ToolSpec] = ()
    start: int = 0
    session: str | None = None
    without_reasoning: frozenset[int] = frozenset()
    without_arguments: frozenset[int] = frozenset()
    forced_until: int = 0

    def can_use(self, index: int, entry: LedgerEntry) -> bool:
        """Return whether the generated tokens of a turn are what the prompt must contain."""
        if index in self.without_arguments:
            return False
        return index not in self.without_reasoning or not has_reasoning(entry)
