"""Recognize the turns of a history that this server generated, and find their exact tokens.

A turn is recognized by a handle first (the entry id in a seal, the ids of calls), then by the
hash chain over the visible messages. If two candidates differ in parts that the client cannot see,
and no handle decides, the client's copy is used: a wrong splice is worse than a missed one. The
same holds if a second candidate may exist that is not known.
"""

import asyncio
from array import array
from dataclasses import replace
from itertools import zip_longest
from typing import Literal

from dovetail.ledger.cache import SharedTokenIds
from dovetail.ledger.candidates import (
    accept_unique,
    drop_unlike_marks,
    has_foreign_call,
    has_own_call_ids,
    single_candidate,
)
from dovetail.ledger.entry import LedgerEntry, unpack_ids
from dovetail.ledger.equivalence import is_same_turn, truncate_to_copy
from dovetail.ledger.history_match import (
    EMPTY_CHAIN,
    HistoryMatch,
    HistoryMatchCache,
    TurnMatch,
    next_step,
)
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.recognized_history import RecognitionScope, RecognizedHistory
from dovetail.ledger.restoration import SealRestorer
from dovetail.ledger.seal import read_entry_id
from dovetail.ledger.store import MAX_LOOKUP_IDS
from dovetail.ledger.turn_digest import HistoryDigester, TurnDigest, TurnDigestCache, extend_chain
from dovetail.storage.lru import LruCache
from dovetail_model import Turn

ReplayPolicy = Literal["auto", "exact", "client"]
_TURNS_PER_STEP = 256  # matched before other tasks can run


class TurnRecognizer:
    """Recognizes turns. Its only state is caches."""

    def __init__(
        self,
        ledger: Ledger,
        restorer: SealRestorer,
        *,
        replay: ReplayPolicy = "auto",
        max_handle_matches: int = 65536,
    ) -> None:
        self._ledger = ledger
        self._restorer = restorer
        self._replay = replay
        self._digests = TurnDigestCache(max_handle_matches)
        self._matches = HistoryMatchCache()
        # Chain and copy digest of a turn -> its match, for matches by handle only.
        self._handle_matches: LruCache[bytes, TurnMatch] = LruCache(max_handle_matches)

    async def match_turns(self, turns: tuple[Turn, ...], scope: RecognitionScope) -> HistoryMatch:
        """Match all turns, except a last assistant turn that the model is to continue."""
        partial_turn = turns[-1] if turns and turns[-1].role == "assistant" else None
        if partial_turn is None:
            return await self._match_turns(turns, scope, resume=scope.session is not None)
        match = await self._match_turns(turns[:-1], scope, resume=False)
        chain_before = match.last.chain if match.last is not None else EMPTY_CHAIN
        match.partial_entry = await self._find_partial(partial_turn, chain_before, scope)
        return match

    async def find_last_entry(
        self, match: HistoryMatch, scope: RecognitionScope
    ) -> LedgerEntry | None:
        """Return the entry of the last turn that has one, or None."""
        for at in reversed(match.assistant_indexes):
            entry = await self._load_entry(match.steps[at].match, scope)
            if entry is not None:
                return entry
        return None

    async def load_entry(
        self, match: HistoryMatch, index: int, scope: RecognitionScope
    ) -> LedgerEntry | None:
        """Return the entry as which a turn was recognized, if any."""
        return await self._load_entry(match.steps[index].match, scope)

    async def find_by_handle(self, turn: Turn, scope: RecognitionScope) -> LedgerEntry | None:
        """Return the only entry that the handles of a turn identify, or None."""
        found = await self._find_by_handles(self._digests.get(turn), scope)
        return found[0] if len(found) == 1 else None

    async def resolve(self, match: HistoryMatch, scope: RecognitionScope) -> RecognizedHistory:
        """Decide which tokens of a matched history can be reused."""
        notes = list(match.notes)
        last = match.last
        chains = (last.chain, last.lineage) if last is not None else (EMPTY_CHAIN, EMPTY_CHAIN)
        history = RecognizedHistory(
            *chains,
            digests=tuple(match.chains),
            start=scope.start,
            forced_until=scope.forced_until,
            without_reasoning=scope.without_reasoning,
            partial_entry=match.partial_entry if self._replay != "client" else None,
        )
        if self._replay == "client":
            return (await self._add_parent(history, match, scope)).without_entries()
        anchor = await self._find_anchor(match, scope)
        if anchor is not None:
            at, parent, token_ids = anchor
            return replace(
                history,
                entries=await self._load_entries(match, replace(scope, start=at), notes),
                anchor_index=at,
                parent_token_ids=token_ids,
                parent=parent,
                parent_index=at,
                call_count=match.steps[at].call_count,
                notes=tuple(notes),
            )
        entries = await self._load_entries(match, scope, notes)
        if entries or notes:
            history = replace(history, entries=entries, notes=tuple(notes))
        return await self._add_parent(history, match, scope)

    async def _add_parent(
        self, history: RecognizedHistory, match: HistoryMatch, scope: RecognitionScope
    ) -> RecognizedHistory:
        """Add the last entry with available token ids, and a prompt that begins the new one."""
        parent, token_ids = None, None
        for at in reversed(match.assistant_indexes):
            parent = await self._load_entry(match.steps[at].match, scope)
            token_ids = await self._ledger.load_token_ids(parent) if parent is not None else None
            if token_ids is not None:
                break
        if parent is None or token_ids is None:
            return history
        history = replace(history, parent=parent, parent_index=at, parent_token_ids=token_ids)
        for at in reversed(match.assistant_indexes):
            if at >= scope.start or not _follows_user(match.turns, at):
                continue
            entry = await self._load_entry(match.steps[at].match, scope)
            if entry is not None and match.steps[at].has_ancestry_of(entry, scope.head):
                prompt = await self._load_prompt(entry, parent, token_ids)
                if not prompt:
                    return history
                calls = match.steps[at].call_count
                return replace(history, base_prompt=(at, prompt), call_count=calls)
        return history

    async def _load_prompt(
        self, entry: LedgerEntry, later: LedgerEntry, later_token_ids: SharedTokenIds
    ) -> "array[int] | None":
        """Return the prompt of an entry, if possible as a prefix of a descendant's token ids."""
        length = entry.prefix_tokens + len(unpack_ids(entry.suffix))
        while later.id != entry.id:
            ancestor = None
            if later.parent is not None and later.prefix_tokens >= length:
                ancestor = await self._ledger.get(later.tenant, later.parent)
            if ancestor is None:
                found = await self._ledger.load_token_ids(entry)
                return None if found is None else found[:length]
            later = ancestor
        return later_token_ids[:length]

    async def _match_turns(
        self, turns: tuple[Turn, ...], scope: RecognitionScope, *, resume: bool
    ) -> HistoryMatch:
        """Match the turns.

        `resume`: reuse the last match of the session as far as it is still valid.
        """
        # Title requests and sub-agents share the agent's session, so the first turn is in the key.
        first_digest = self._digests.get(turns[0]).digest if turns else b""
        key = (scope.tenant, f"{scope.session}/{len(scope.tools)}", first_digest)
        match = HistoryMatch(turns)
        if resume:
            match = await self._revalidate(self._matches.resume(key, turns), scope)
        digester = HistoryDigester(self._digests, turns[: len(match.steps)])
        for at in range(len(match.steps), len(turns)):
            await _pause_after(at)
            last = match.last
            digest = digester.add(turns[at])
            calls = last.call_count + len(self._digests.get(turns[at - 1]).call_ids) if last else 0
            chain_before = last.chain if last is not None else EMPTY_CHAIN
            found = TurnMatch(
                extend_chain(scope.chain_key, chain_before, digest.digest), None, "nothing"
            )
            if turns[at].role == "assistant":
                found = await self._recognize(
                    turns[at], chain_before, found.chain, scope, match.notes
                )
            match.add(next_step(scope.chain_key, last, calls, digest, found))
        if resume:
            if match.chain_matched_indexes and match.ledger_state[0] is None:
                match.ledger_state = (await self._ledger.store_version(), self._ledger.sequence)
            self._matches.put(
                key, match.truncate_at_unknown() if self._ledger.is_degraded else match
            )
        return match

    async def _find_partial(
        self, turn: Turn, chain_before: bytes, scope: RecognitionScope
    ) -> LedgerEntry | None:
        """Return the entry of a turn that the model continues, truncated to the client's copy."""
        digest = self._digests.get(turn)
        chain = extend_chain(scope.chain_key, chain_before, digest.digest)
        found = await self._recognize(turn, chain_before, chain, scope, [])
        entry = await self._load_entry(found, scope)
        if entry is not None:
            return truncate_to_copy(entry, turn, scope.tools) or entry
        candidates = await self._find_by_handles(digest, scope)
        truncated = (truncate_to_copy(entry, turn, scope.tools) for entry in candidates)
        return single_candidate([entry for entry in truncated if entry is not None], [])

    async def _revalidate(self, match: HistoryMatch, scope: RecognitionScope) -> HistoryMatch:
        """Truncate the match at the first chain match that has become ambiguous or different."""
        if not match.chain_matched_indexes:
            return match
        version, sequence = match.ledger_state
        ledger_state = (await self._ledger.store_version(), self._ledger.sequence)
        steps = [match.steps[at] for at in match.chain_matched_indexes]
        chains = [chain for step in steps for chain in (step.chain, step.chain_before)]
        match.ledger_state = ledger_state
        others_wrote = version is None or version != ledger_state[0]
        if not others_wrote and not self._ledger.has_recorded_since(scope.tenant, chains, sequence):
            return match
        for at in match.chain_matched_indexes:
            step = match.steps[at]
            entry = await self._find_by_chain(
                match.turns[at], step.chain_before, step.chain, scope, []
            )
            if entry is None or entry.id != step.match.entry_id:
                return match.truncate(match.turns, at)
        return match

    async def _recognize(
        self,
        turn: Turn,
        chain_before: bytes,
        chain: bytes,
        scope: RecognitionScope,
        notes: list[str],
    ) -> TurnMatch:
        """Recognize an assistant turn. `chain` is the visible chain including the client's copy."""
        copy_key = chain + self._digests.get(turn).copy_digest
        known = self._handle_matches.peek(copy_key)
        if known is not None:
            return known
        candidates = await self._find_by_handles(self._digests.get(turn), scope)
        if not candidates:
            entry = await self._find_by_chain(turn, chain_before, chain, scope, notes)
            if entry is None and has_own_call_ids(self._digests.get(turn)):
                notes.append("unknown_turn")
            return (
                TurnMatch(chain, entry.id, "chain") if entry else TurnMatch(chain, None, "nothing")
            )
        if self._replay != "exact":
            candidates = [entry for entry in candidates if is_same_turn(entry, turn, scope.tools)]
            if not candidates:
                notes.append("edited_turn")
        entry = single_candidate(candidates, notes)
        if entry is None:
            return TurnMatch(chain, None, "nothing")
        found = TurnMatch(
            entry.chain if entry.chain_before == chain_before else chain, entry.id, "handle"
        )
        self._handle_matches.put(copy_key, found)
        return found

    async def _find_by_handles(
        self, digest: TurnDigest, scope: RecognitionScope
    ) -> list[LedgerEntry]:
        found: dict[str, LedgerEntry] = {}
        for seal in digest.seals:
            id = read_entry_id(seal)
            entry = await self._ledger.get(scope.tenant, id) if id is not None else None
            if entry is not None and entry.model == scope.model:
                found[entry.id] = entry
        if not found:
            for call_id in digest.call_ids:
                for entry in await self._ledger.find_by_call(scope.tenant, call_id):
                    if entry.model == scope.model:
                        found[entry.id] = entry
        return list(found.values())

    async def _find_by_chain(
        self,
        turn: Turn,
        chain_before: bytes,
        chain: bytes,
        scope: RecognitionScope,
        notes: list[str],
    ) -> LedgerEntry | None:
        """Return the entry with this chain that is equivalent to the turn, if it is unambiguous."""
        digest = self._digests.get(turn)
        if any(read_entry_id(seal) is not None for seal in digest.seals):
            return None  # the entry named by the seal is not stored: restore it from the seal
        found = await self._ledger.find_by_chain(scope.tenant, chain, chain_before)
        if len(found.entries) >= MAX_LOOKUP_IDS:  # there may be more
            notes.append("ambiguous_turn")
            return None
        candidates = [
            entry
            for entry in found.entries
            if not has_foreign_call(entry, digest) and is_same_turn(entry, turn, scope.tools)
        ]
        found = found._replace(entries=candidates)
        found = await drop_unlike_marks(found, turn, scope.tenant, self._ledger)
        return accept_unique(found, turn, scope.model, scope.session, notes)

    async def _find_anchor(
        self, match: HistoryMatch, scope: RecognitionScope
    ) -> tuple[int, LedgerEntry, SharedTokenIds] | None:
        """Return the last turn that is recognized together with all turns before it."""
        for at in reversed(match.assistant_indexes):
            if at < scope.start:
                return None
            entry = await self._load_entry(match.steps[at].match, scope)
            if entry is None or not match.steps[at].has_ancestry_of(entry, scope.head):
                continue
            if not scope.can_use(at, entry) or _had_dropped_reasoning(match.turns, at, scope):
                continue
            token_ids = await self._ledger.load_token_ids(entry)
            if token_ids is not None:
                return at, entry, token_ids
        return None

    async def _load_entry(self, found: TurnMatch, scope: RecognitionScope) -> LedgerEntry | None:
        id = found.entry_id
        return None if id is None else await self._ledger.get(scope.tenant, id)

    async def _load_entries(
        self, match: HistoryMatch, scope: RecognitionScope, notes: list[str]
    ) -> dict[int, LedgerEntry]:
        """Return the entries of all turns that may be spliced, from seals if not stored."""
        entries: dict[int, LedgerEntry] = {}
        indexes = [at for at in match.assistant_indexes if at >= scope.start]
        for at, later in zip_longest(indexes, indexes[1:]):
            await _pause_after(at)
            turn = match.turns[at]
            entry = await self._load_entry(match.steps[at].match, scope)
            if entry is None and not await self._find_by_handles(self._digests.get(turn), scope):
                following = match.turns[later] if later is not None else None
                entry = self._restorer.restore(
                    turn, following, scope.tenant, scope.model, scope.tools, notes
                )
            if entry is not None and scope.can_use(at, entry):
                entries[at] = entry
        return entries


async def _pause_after(turn: int) -> None:
    """Let other tasks run from time to time: long histories must not block other requests."""
    if turn % _TURNS_PER_STEP >= _TURNS_PER_STEP - 2:  # assistant turns may all have odd indexes
        await asyncio.sleep(0)


def _had_dropped_reasoning(turns: tuple[Turn, ...], index: int, scope: RecognitionScope) -> bool:
    """Return whether the prompt of a turn has reasoning that has been dropped since.

    Settings drop the reasoning of finished tool loops only: at the time of the turn, its own loop
    was not finished.
    """
    for at in range(index - 1, -1, -1):
        if turns[at].role == "user":
            return False
        if at in scope.without_reasoning:
            return True
    return False


def _follows_user(turns: tuple[Turn, ...], index: int) -> bool:
    return index > 0 and turns[index - 1].role not in ("assistant", "tool")
