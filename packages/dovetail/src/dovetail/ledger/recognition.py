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

from dovetail.ledger.entry import Entry, unpack
from dovetail.ledger.equivalence import cut_behind, same_turn
from dovetail.ledger.history_match import START, Found, Step, Walk, Walks, step
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.restoration import Restorer
from dovetail.ledger.seal import entry_id_of
from dovetail.ledger.store import NEWEST, call_key
from dovetail.ledger.turn_digest import Digests, Seen, link
from dovetail_model import ToolSpec, Turn

Replay = Literal["auto", "exact", "client"]


@dataclass(frozen=True)
class Recalled:
    """What is known of a history, and the ends of its chain and its line.

    `known` has the entries of assistant turns, by their place. `parent` is the nearest of them and
    `whole` its prompt with the turn itself; where `anchor`, its place, is given, the new prompt
    goes on from that whole. `base` is the prompt of a turn that answered a user, and its place:
    what stands before it has not changed since. `calls` counts the calls before anchor or base.
    `begun` is the entry of a last turn that the model is to go on from; `start` is the scope's.
    """

    chain: bytes = START
    line: bytes = START
    digests: tuple[bytes, ...] = ()
    known: dict[int, Entry] = field(default_factory=dict)
    anchor: int | None = None
    whole: "array[int] | None" = None
    parent: Entry | None = None
    notes: tuple[str, ...] = ()
    calls: int = 0
    base: "tuple[int, array[int]] | None" = None
    begun: Entry | None = None
    start: int = 0
    parent_place: int | None = None

    def forgotten(self, start: int | None = None) -> "Recalled":
        """The same history with nothing to take from it but the parent's common beginning.

        With `start` turns from there on keep their tokens; those before are left to the template.
        """
        if start is None:
            return replace(self, known={}, anchor=None, base=None)
        known = {at: entry for at, entry in self.known.items() if at >= start}
        return replace(self, known=known, anchor=None, base=None, start=start)


@dataclass(frozen=True)
class Scope:
    """Where and for whom to look. Turns before `start` are rendered anew in any case.

    `head` and `start` are not needed to recognise turns, only to say what can be taken from them.
    """

    tenant: str
    key: bytes
    model: str
    head: bytes = b""
    tools: Sequence[ToolSpec] = ()
    start: int = 0
    session: str | None = None


class Recaller:
    """Recognises turns. Holds only what may be forgotten."""

    def __init__(
        self, ledger: Ledger, restorer: Restorer, *, replay: Replay = "auto", most: int = 65536
    ) -> None:
        self._ledger = ledger
        self._restorer = restorer
        self._replay = replay
        self._most = most
        self._digests = Digests(most)
        self._walks = Walks()
        # A client's copy, where it stands -> what it was recognised as, if that was by a handle.
        self._handled: OrderedDict[bytes, Found] = OrderedDict()

    async def walk(self, turns: tuple[Turn, ...], scope: Scope) -> Walk:
        """The turns recognised, but for a last one that the model is to go on from."""
        begun = turns[-1] if turns and turns[-1].role == "assistant" else None
        if begun is None:
            return await self._walk(turns, scope)
        walk = await self._walk(turns[:-1], replace(scope, session=None))
        before = walk.last.chain if walk.last is not None else START
        walk.begun = await self._begun(begun, before, scope)
        return walk

    async def last(self, walk: Walk, scope: Scope) -> Entry | None:
        """The entry of the nearest turn that has one."""
        for at in reversed(walk.places):
            entry = await self._entry(walk.steps[at].found, scope)
            if entry is not None:
                return entry
        return None

    async def recall(self, walk: Walk, scope: Scope) -> Recalled:
        """What can be taken from the turns of a walk."""
        notes = list(walk.notes)
        ends = (walk.last.chain, walk.last.line) if walk.last is not None else (START, START)
        path = Recalled(*ends, digests=tuple(walk.chains), start=scope.start)
        if self._replay == "client":
            return (await self._with_parent(path, walk, scope)).forgotten()
        path = replace(path, begun=walk.begun)
        anchor = await self._anchor(walk, scope)
        if anchor is not None:
            at, parent, whole = anchor
            return replace(
                path,
                known=await self._all_known(walk, replace(scope, start=at), notes),
                anchor=at,
                whole=whole,
                parent=parent,
                parent_place=at,
                calls=walk.steps[at].calls,
                notes=tuple(notes),
            )
        known = await self._all_known(walk, scope, notes)
        path = replace(path, known=known, notes=tuple(notes))
        return await self._with_parent(path, walk, scope)

    async def _with_parent(self, path: Recalled, walk: Walk, scope: Scope) -> Recalled:
        """The nearest entry whose prompt is at hand, and a prompt that the new one begins with."""
        parent, whole = None, None
        for at in reversed(walk.places):
            parent = await self._entry(walk.steps[at].found, scope)
            whole = await self._ledger.whole(parent) if parent is not None else None
            if whole is not None:
                break
        if parent is None or whole is None:
            return path
        path = replace(path, parent=parent, parent_place=at, whole=whole)
        for at in reversed(walk.places):
            if at >= scope.start or not _answers_user(walk.turns, at):
                continue
            entry = await self._entry(walk.steps[at].found, scope)
            if entry is not None and _is_as_it_was(entry, walk.steps[at], scope):
                prompt = await self._prompt(entry, parent, whole)
                calls = walk.steps[at].calls
                return replace(path, base=(at, prompt), calls=calls) if prompt else path
        return path

    async def _prompt(self, entry: Entry, later: Entry, whole: "array[int]") -> "array[int] | None":
        """The prompt of an entry, out of the whole of one that grew from it if that holds it."""
        length = entry.keep + len(unpack(entry.suffix))
        while later.id != entry.id:
            above = None
            if later.parent is not None and later.keep >= length:
                above = await self._ledger.get(later.tenant, later.parent)
            if above is None:
                found = await self._ledger.whole(entry)
                return None if found is None else found[:length]
            later = above
        return whole[:length]

    async def _walk(self, turns: tuple[Turn, ...], scope: Scope) -> Walk:
        """The steps along the turns, from where the session's last walk still holds."""
        # A harness sends titles and sub-agents under one session: each line has its own walk.
        first = self._digests.of(turns[0]).digest if turns else b""
        session = (scope.tenant, f"{scope.session}/{len(scope.tools)}", first)
        walk = Walk(turns)
        if scope.session is not None:
            walk = await self._still_true(self._walks.resume(session, turns), scope)
        for at in range(len(walk.steps), len(turns)):
            last = walk.last
            seen = self._digests.of(turns[at])
            calls = last.calls + len(self._digests.of(turns[at - 1]).call_ids) if last else 0
            before = last.chain if last is not None else START
            found = Found(link(scope.key, before, seen.digest), None, "nothing")
            if turns[at].role == "assistant":
                found = await self._recognise(turns[at], before, found.chain, scope, walk.notes)
            walk.add(step(scope.key, last, calls, seen, found))
        if scope.session is not None:
            if walk.looks and walk.seen_at[0] is None:
                walk.seen_at = (await self._ledger.version(), self._ledger.sequence)
            self._walks.keep(session, walk.sure() if self._ledger.unsure else walk)
        return walk

    async def _begun(self, turn: Turn, before: bytes, scope: Scope) -> Entry | None:
        """The entry of a turn that the model is to go on from, as far as the client has it."""
        seen = self._digests.of(turn)
        chain = link(scope.key, before, seen.digest)
        found = await self._recognise(turn, before, chain, scope, [])
        entry = await self._entry(found, scope)
        if entry is not None:
            return cut_behind(entry, turn, scope.tools) or entry
        handled = await self._by_handles(seen, scope)
        cut = (cut_behind(entry, turn, scope.tools) for entry in handled)
        return _only([entry for entry in cut if entry is not None], [])

    async def _still_true(self, walk: Walk, scope: Scope) -> Walk:
        """The walk up to the first turn that was known by its looks and has a double now."""
        if not walk.looks:
            return walk
        version, sequence = walk.seen_at
        now_at = (await self._ledger.version(), self._ledger.sequence)
        chains = [walk.chains[at] for at in walk.looks]
        walk.seen_at = now_at
        others_wrote = version is None or version != now_at[0]
        if not others_wrote and not self._ledger.recorded_since(scope.tenant, chains, sequence):
            return walk
        for at in walk.looks:
            one = walk.steps[at]
            now = await self._by_chain(walk.turns[at], one.chain, scope, [])
            if now is None or now.id != one.found.entry:
                return walk.up_to(walk.turns, at)
        return walk

    async def _recognise(
        self, turn: Turn, before: bytes, chain: bytes, scope: Scope, notes: list[str]
    ) -> Found:
        """What an assistant turn is, `chain` being the visible chain with the client's copy."""
        copy = chain + self._digests.of(turn).copy
        known = self._handled.get(copy)
        if known is not None:
            return known
        handled = await self._by_handles(self._digests.of(turn), scope)
        if not handled:
            entry = await self._by_chain(turn, chain, scope, notes)
            if entry is None and _is_ours(self._digests.of(turn)):
                notes.append("unknown_turn")
            return Found(chain, entry.id, "chain") if entry else Found(chain, None, "nothing")
        if self._replay != "exact":
            handled = [entry for entry in handled if same_turn(entry, turn, scope.tools)]
            if not handled:
                notes.append("edited_turn")
        entry = _only(handled, notes)
        if entry is None:
            return Found(chain, None, "nothing")
        found = Found(entry.chain if entry.before == before else chain, entry.id, "handle")
        self._handled[copy] = found
        if len(self._handled) > self._most:
            self._handled.popitem(last=False)
        return found

    async def _by_handles(self, seen: Seen, scope: Scope) -> list[Entry]:
        found: dict[str, Entry] = {}
        for seal in seen.seals:
            id = entry_id_of(seal)
            entry = await self._ledger.get(scope.tenant, id) if id is not None else None
            if entry is not None and entry.model == scope.model:
                found[entry.id] = entry
        if not found:
            for call_id in seen.call_ids:
                for entry in await self._ledger.by_call(scope.tenant, call_id):
                    if entry.model == scope.model:
                        found[entry.id] = entry
        return list(found.values())

    async def _by_chain(
        self, turn: Turn, chain: bytes, scope: Scope, notes: list[str]
    ) -> Entry | None:
        """The one entry that looks like this turn where it stands."""
        seen = self._digests.of(turn)
        if any(entry_id_of(seal) is not None for seal in seen.seals):
            return None  # it says whose it is, and that one is not stored: its seal may restore it
        found = await self._ledger.by_chain(scope.tenant, chain)
        if len(found) >= NEWEST:  # there may be more
            notes.append("ambiguous_turn")
            return None
        fitting = [
            entry
            for entry in found
            if entry.model == scope.model
            and not _other_call(entry, seen)
            and same_turn(entry, turn, scope.tools)
        ]
        return _only(fitting, notes)

    async def _anchor(self, walk: Walk, scope: Scope) -> "tuple[int, Entry, array[int]] | None":
        """The last turn that is known together with all that came before it."""
        for at in reversed(walk.places):
            if at < scope.start:
                return None
            entry = await self._entry(walk.steps[at].found, scope)
            if entry is None or not _is_as_it_was(entry, walk.steps[at], scope):
                continue
            whole = await self._ledger.whole(entry)
            if whole is not None:
                return at, entry, whole
        return None

    async def _entry(self, found: Found, scope: Scope) -> Entry | None:
        id = found.entry
        return None if id is None else await self._ledger.get(scope.tenant, id)

    async def _all_known(self, walk: Walk, scope: Scope, notes: list[str]) -> dict[int, Entry]:
        """The entries of all turns that may be spliced; from their seals, where none is stored."""
        known: dict[int, Entry] = {}
        places = [at for at in walk.places if at >= scope.start]
        for at, later in zip_longest(places, places[1:]):
            turn = walk.turns[at]
            entry = await self._entry(walk.steps[at].found, scope)
            if entry is None and not await self._by_handles(self._digests.of(turn), scope):
                following = walk.turns[later] if later is not None else None
                entry = self._restorer.restore(
                    turn, following, scope.tenant, scope.model, scope.tools, notes
                )
            if entry is not None:
                known[at] = entry
        return known


def _is_as_it_was(entry: Entry, step: Step, scope: Scope) -> bool:
    """Whether all that came before the turn is what came before the entry."""
    return (entry.line, entry.head) == (step.line_before, scope.head)


def _only(entries: list[Entry], notes: list[str]) -> Entry | None:
    """The entry, if all candidates are the same tokens on the same line."""
    if len({(entry.generated, entry.line) for entry in entries}) > 1:
        notes.append("ambiguous_turn")
        return None
    return entries[0] if entries else None


def _other_call(entry: Entry, seen: Seen) -> bool:
    """Whether the client's call ids are ours, and another turn's. Ids of its own say nothing."""
    for theirs, ours in zip(seen.call_ids, entry.call_ids, strict=False):
        one, other = call_key(theirs), call_key(ours)
        if one != other and len(one) == len(other) and one[:4] == other[:4]:
            return True
    return False


def _is_ours(seen: Seen) -> bool:
    """Whether the turn's calls have ids that we gave out, and no seal that may restore it."""
    return not seen.seals and any(_OUR_CALL.fullmatch(call_key(id)) for id in seen.call_ids)


_OUR_CALL = re.compile(r"(?:call|toolu|fc)[0-9a-z]{24}")


def _answers_user(turns: tuple[Turn, ...], at: int) -> bool:
    return at > 0 and turns[at - 1].role not in ("assistant", "tool")
