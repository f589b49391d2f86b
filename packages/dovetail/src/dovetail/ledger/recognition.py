"""Recognition: which turns of a history are ours, and the exact tokens they were made of.

By a handle first (the entry's id in a seal, the ids of calls), then by the hash chain over what is
visible. Two candidates that differ in what the client cannot see, and no handle to decide: the
client's copy. A wrong splice is worse than a missed one.
"""

import re
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Literal

from dovetail.ledger.entry import LedgerEntry, unpack_ids
from dovetail.ledger.equivalence import is_same_turn, truncate_to_copy
from dovetail.ledger.history_match import (
    EMPTY_CHAIN,
    HistoryMatch,
    HistoryMatchCache,
    MatchStep,
    TurnMatch,
    next_step,
)
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.restoration import SealRestorer
from dovetail.ledger.seal import read_entry_id
from dovetail.ledger.store import MAX_LOOKUP_IDS, make_call_key
from dovetail.ledger.turn_digest import TurnDigest, TurnDigestCache, extend_chain
from dovetail_model import ToolSpec, Turn

ReplayPolicy = Literal["auto", "exact", "client"]


@dataclass(frozen=True)
class RecognizedHistory:
    """What is known of a history, and the ends of its chain and its line.

    `known` has the entries of assistant turns, by their place. `parent` is the nearest of them and
    `whole` its prompt with the turn itself; where `anchor`, its place, is given, the new prompt
    goes on from that whole. `base` is the prompt of a turn that answered a user, and its place:
    what stands before it has not changed since. `calls` counts the calls before anchor or base.
    `begun` is the entry of a last turn that the model is to go on from; `start` is the scope's.
    """

    chain: bytes = EMPTY_CHAIN
    lineage: bytes = EMPTY_CHAIN
    digests: tuple[bytes, ...] = ()
    entries: dict[int, LedgerEntry] = field(default_factory=dict)
    anchor_index: int | None = None
    parent_token_ids: "array[int] | None" = None
    parent: LedgerEntry | None = None
    notes: tuple[str, ...] = ()
    call_count: int = 0
    base_prompt: "tuple[int, array[int]] | None" = None
    partial_entry: LedgerEntry | None = None
    start: int = 0
    parent_index: int | None = None

    def without_entries(self, start: int | None = None) -> "RecognizedHistory":
        """The same history with nothing to take from it but the parent's common beginning.

        With `start` turns from there on keep their tokens; those before are left to the template.
        """
        if start is None:
            return replace(self, entries={}, anchor_index=None, base_prompt=None)
        known = {at: entry for at, entry in self.entries.items() if at >= start}
        return replace(self, entries=known, anchor_index=None, base_prompt=None, start=start)


@dataclass(frozen=True)
class RecognitionScope:
    """Where and for whom to look. Turns before `start` are rendered anew in any case.

    `head` and `start` are not needed to recognise turns, only to say what can be taken from them.
    """

    tenant: str
    chain_key: bytes
    model: str
    head: bytes = b""
    tools: Sequence[ToolSpec] = ()
    start: int = 0
    session: str | None = None


class TurnRecognizer:
    """Recognises turns. Holds only what may be forgotten."""

    def __init__(
        self,
        ledger: Ledger,
        restorer: SealRestorer,
        *,
        replay: ReplayPolicy = "auto",
        max_handled: int = 65536,
    ) -> None:
        self._ledger = ledger
        self._restorer = restorer
        self._replay = replay
        self._max_handled = max_handled
        self._digests = TurnDigestCache(max_handled)
        self._matches = HistoryMatchCache()
        # A client's copy, where it stands -> what it was recognised as, if that was by a handle.
        self._handled: OrderedDict[bytes, TurnMatch] = OrderedDict()

    async def match_turns(self, turns: tuple[Turn, ...], scope: RecognitionScope) -> HistoryMatch:
        """The turns recognised, but for a last one that the model is to go on from."""
        begun = turns[-1] if turns and turns[-1].role == "assistant" else None
        if begun is None:
            return await self._match_turns(turns, scope)
        walk = await self._match_turns(turns[:-1], replace(scope, session=None))
        before = walk.last.chain if walk.last is not None else EMPTY_CHAIN
        walk.partial_entry = await self._find_partial(begun, before, scope)
        return walk

    async def find_last_entry(
        self, match: HistoryMatch, scope: RecognitionScope
    ) -> LedgerEntry | None:
        """The entry of the nearest turn that has one."""
        for at in reversed(match.assistant_indexes):
            entry = await self._load_entry(match.steps[at].match, scope)
            if entry is not None:
                return entry
        return None

    async def resolve(self, match: HistoryMatch, scope: RecognitionScope) -> RecognizedHistory:
        """What can be taken from the turns of a walk."""
        notes = list(match.notes)
        ends = (
            (match.last.chain, match.last.lineage)
            if match.last is not None
            else (EMPTY_CHAIN, EMPTY_CHAIN)
        )
        path = RecognizedHistory(*ends, digests=tuple(match.chains), start=scope.start)
        if self._replay == "client":
            return (await self._add_parent(path, match, scope)).without_entries()
        path = replace(path, partial_entry=match.partial_entry)
        anchor = await self._find_anchor(match, scope)
        if anchor is not None:
            at, parent, whole = anchor
            return replace(
                path,
                entries=await self._load_entries(match, replace(scope, start=at), notes),
                anchor_index=at,
                parent_token_ids=whole,
                parent=parent,
                parent_index=at,
                call_count=match.steps[at].call_count,
                notes=tuple(notes),
            )
        known = await self._load_entries(match, scope, notes)
        path = replace(path, entries=known, notes=tuple(notes))
        return await self._add_parent(path, match, scope)

    async def _add_parent(
        self, history: RecognizedHistory, match: HistoryMatch, scope: RecognitionScope
    ) -> RecognizedHistory:
        """The nearest entry whose prompt is at hand, and a prompt that the new one begins with."""
        parent, whole = None, None
        for at in reversed(match.assistant_indexes):
            parent = await self._load_entry(match.steps[at].match, scope)
            whole = await self._ledger.load_token_ids(parent) if parent is not None else None
            if whole is not None:
                break
        if parent is None or whole is None:
            return history
        history = replace(history, parent=parent, parent_index=at, parent_token_ids=whole)
        for at in reversed(match.assistant_indexes):
            if at >= scope.start or not _follows_user(match.turns, at):
                continue
            entry = await self._load_entry(match.steps[at].match, scope)
            if entry is not None and _has_same_ancestry(entry, match.steps[at], scope):
                prompt = await self._load_prompt(entry, parent, whole)
                calls = match.steps[at].call_count
                return (
                    replace(history, base_prompt=(at, prompt), call_count=calls)
                    if prompt
                    else history
                )
        return history

    async def _load_prompt(
        self, entry: LedgerEntry, later: LedgerEntry, later_token_ids: "array[int]"
    ) -> "array[int] | None":
        """The prompt of an entry, out of the whole of one that grew from it if that holds it."""
        length = entry.keep + len(unpack_ids(entry.suffix))
        while later.id != entry.id:
            above = None
            if later.parent is not None and later.keep >= length:
                above = await self._ledger.get(later.tenant, later.parent)
            if above is None:
                found = await self._ledger.load_token_ids(entry)
                return None if found is None else found[:length]
            later = above
        return later_token_ids[:length]

    async def _match_turns(self, turns: tuple[Turn, ...], scope: RecognitionScope) -> HistoryMatch:
        """The steps along the turns, from where the session's last walk still holds."""
        # A harness sends titles and sub-agents under one session: each line has its own walk.
        first = self._digests.get(turns[0]).digest if turns else b""
        session = (scope.tenant, f"{scope.session}/{len(scope.tools)}", first)
        walk = HistoryMatch(turns)
        if scope.session is not None:
            walk = await self._revalidate(self._matches.resume(session, turns), scope)
        for at in range(len(walk.steps), len(turns)):
            last = walk.last
            seen = self._digests.get(turns[at])
            calls = last.call_count + len(self._digests.get(turns[at - 1]).call_ids) if last else 0
            before = last.chain if last is not None else EMPTY_CHAIN
            found = TurnMatch(extend_chain(scope.chain_key, before, seen.digest), None, "nothing")
            if turns[at].role == "assistant":
                found = await self._recognize(turns[at], before, found.chain, scope, walk.notes)
            walk.add(next_step(scope.chain_key, last, calls, seen, found))
        if scope.session is not None:
            if walk.chain_matched_indexes and walk.ledger_state[0] is None:
                walk.ledger_state = (await self._ledger.store_version(), self._ledger.sequence)
            self._matches.put(
                session, walk.truncate_at_unknown() if self._ledger.is_degraded else walk
            )
        return walk

    async def _find_partial(
        self, turn: Turn, before: bytes, scope: RecognitionScope
    ) -> LedgerEntry | None:
        """The entry of a turn that the model is to go on from, as far as the client has it."""
        seen = self._digests.get(turn)
        chain = extend_chain(scope.chain_key, before, seen.digest)
        found = await self._recognize(turn, before, chain, scope, [])
        entry = await self._load_entry(found, scope)
        if entry is not None:
            return truncate_to_copy(entry, turn, scope.tools) or entry
        handled = await self._find_by_handles(seen, scope)
        cut = (truncate_to_copy(entry, turn, scope.tools) for entry in handled)
        return _single_candidate([entry for entry in cut if entry is not None], [])

    async def _revalidate(self, match: HistoryMatch, scope: RecognitionScope) -> HistoryMatch:
        """The walk up to the first turn that was known by its looks and has a double now."""
        if not match.chain_matched_indexes:
            return match
        version, sequence = match.ledger_state
        now_at = (await self._ledger.store_version(), self._ledger.sequence)
        chains = [match.chains[at] for at in match.chain_matched_indexes]
        match.ledger_state = now_at
        others_wrote = version is None or version != now_at[0]
        if not others_wrote and not self._ledger.has_recorded_since(scope.tenant, chains, sequence):
            return match
        for at in match.chain_matched_indexes:
            one = match.steps[at]
            now = await self._find_by_chain(match.turns[at], one.chain, scope, [])
            if now is None or now.id != one.match.entry_id:
                return match.truncate(match.turns, at)
        return match

    async def _recognize(
        self, turn: Turn, before: bytes, chain: bytes, scope: RecognitionScope, notes: list[str]
    ) -> TurnMatch:
        """What an assistant turn is, `chain` being the visible chain with the client's copy."""
        copy = chain + self._digests.get(turn).copy_digest
        known = self._handled.get(copy)
        if known is not None:
            return known
        handled = await self._find_by_handles(self._digests.get(turn), scope)
        if not handled:
            entry = await self._find_by_chain(turn, chain, scope, notes)
            if entry is None and _has_own_call_ids(self._digests.get(turn)):
                notes.append("unknown_turn")
            return (
                TurnMatch(chain, entry.id, "chain") if entry else TurnMatch(chain, None, "nothing")
            )
        if self._replay != "exact":
            handled = [entry for entry in handled if is_same_turn(entry, turn, scope.tools)]
            if not handled:
                notes.append("edited_turn")
        entry = _single_candidate(handled, notes)
        if entry is None:
            return TurnMatch(chain, None, "nothing")
        found = TurnMatch(entry.chain if entry.before == before else chain, entry.id, "handle")
        self._handled[copy] = found
        if len(self._handled) > self._max_handled:
            self._handled.popitem(last=False)
        return found

    async def _find_by_handles(
        self, seen: TurnDigest, scope: RecognitionScope
    ) -> list[LedgerEntry]:
        found: dict[str, LedgerEntry] = {}
        for seal in seen.seals:
            id = read_entry_id(seal)
            entry = await self._ledger.get(scope.tenant, id) if id is not None else None
            if entry is not None and entry.model == scope.model:
                found[entry.id] = entry
        if not found:
            for call_id in seen.call_ids:
                for entry in await self._ledger.find_by_call(scope.tenant, call_id):
                    if entry.model == scope.model:
                        found[entry.id] = entry
        return list(found.values())

    async def _find_by_chain(
        self, turn: Turn, chain: bytes, scope: RecognitionScope, notes: list[str]
    ) -> LedgerEntry | None:
        """The one entry that looks like this turn where it stands."""
        seen = self._digests.get(turn)
        if any(read_entry_id(seal) is not None for seal in seen.seals):
            return None  # it says whose it is, and that one is not stored: its seal may restore it
        found = await self._ledger.find_by_chain(scope.tenant, chain)
        if len(found) >= MAX_LOOKUP_IDS:  # there may be more
            notes.append("ambiguous_turn")
            return None
        fitting = [
            entry
            for entry in found
            if entry.model == scope.model
            and not _has_foreign_call(entry, seen)
            and is_same_turn(entry, turn, scope.tools)
        ]
        return _single_candidate(fitting, notes)

    async def _find_anchor(
        self, match: HistoryMatch, scope: RecognitionScope
    ) -> "tuple[int, LedgerEntry, array[int]] | None":
        """The last turn that is known together with all that came before it."""
        for at in reversed(match.assistant_indexes):
            if at < scope.start:
                return None
            entry = await self._load_entry(match.steps[at].match, scope)
            if entry is None or not _has_same_ancestry(entry, match.steps[at], scope):
                continue
            whole = await self._ledger.load_token_ids(entry)
            if whole is not None:
                return at, entry, whole
        return None

    async def _load_entry(self, found: TurnMatch, scope: RecognitionScope) -> LedgerEntry | None:
        id = found.entry_id
        return None if id is None else await self._ledger.get(scope.tenant, id)

    async def _load_entries(
        self, match: HistoryMatch, scope: RecognitionScope, notes: list[str]
    ) -> dict[int, LedgerEntry]:
        """The entries of all turns that may be spliced; from their seals, where none is stored."""
        known: dict[int, LedgerEntry] = {}
        places = [at for at in match.assistant_indexes if at >= scope.start]
        for at, later in zip_longest(places, places[1:]):
            turn = match.turns[at]
            entry = await self._load_entry(match.steps[at].match, scope)
            if entry is None and not await self._find_by_handles(self._digests.get(turn), scope):
                following = match.turns[later] if later is not None else None
                entry = self._restorer.restore(
                    turn, following, scope.tenant, scope.model, scope.tools, notes
                )
            if entry is not None:
                known[at] = entry
        return known


def _has_same_ancestry(entry: LedgerEntry, step: MatchStep, scope: RecognitionScope) -> bool:
    """Whether all that came before the turn is what came before the entry."""
    return (entry.line, entry.head) == (step.lineage_before, scope.head)


def _single_candidate(entries: list[LedgerEntry], notes: list[str]) -> LedgerEntry | None:
    """The entry, if all candidates are the same tokens on the same line."""
    if len({(entry.generated, entry.line) for entry in entries}) > 1:
        notes.append("ambiguous_turn")
        return None
    return entries[0] if entries else None


def _has_foreign_call(entry: LedgerEntry, seen: TurnDigest) -> bool:
    """Whether the client's call ids are ours, and another turn's. Ids of its own say nothing."""
    for theirs, ours in zip(seen.call_ids, entry.call_ids, strict=False):
        one, other = make_call_key(theirs), make_call_key(ours)
        if one != other and len(one) == len(other) and one[:4] == other[:4]:
            return True
    return False


def _has_own_call_ids(seen: TurnDigest) -> bool:
    """Whether the turn's calls have ids that we gave out, and no seal that may restore it."""
    return not seen.seals and any(_OWN_CALL_ID.fullmatch(make_call_key(id)) for id in seen.call_ids)


_OWN_CALL_ID = re.compile(r"(?:call|toolu|fc)[0-9a-z]{24}")


def _follows_user(turns: tuple[Turn, ...], index: int) -> bool:
    return index > 0 and turns[index - 1].role not in ("assistant", "tool")
