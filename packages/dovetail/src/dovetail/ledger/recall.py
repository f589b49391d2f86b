"""Recognition: which turns of a history are ours, and the exact tokens they were made of.

By a handle first (the entry's id in a seal, the ids of calls), then by the hash chain over what is
visible. Two candidates that differ in what the client cannot see, and no handle to decide: the
client's copy. A wrong splice is worse than a missed one.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dovetail.ledger.entry import Entry, unpack
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.meaning import same_turn
from dovetail.ledger.restore import Restorer
from dovetail.ledger.seal import entry_id_of
from dovetail.ledger.visible import SIZE, Digests, Seen, link
from dovetail_model import ToolSpec, Turn

Replay = Literal["auto", "exact", "client"]
_START = bytes(SIZE)


@dataclass(frozen=True)
class Recalled:
    """What is known of a history.

    `known` has the entries of assistant turns, by their place. `parent` is the nearest of them and
    `whole` its prompt with the turn itself; where `anchor`, its place, is given, the new prompt
    goes on from that whole. `base` is the prompt of a turn that answered a user, and its place:
    what stands before it has not changed since. `calls` counts the calls before anchor or base.
    """

    chain: bytes = _START
    digests: tuple[bytes, ...] = ()
    known: dict[int, Entry] = field(default_factory=dict)
    anchor: int | None = None
    whole: "array[int] | None" = None
    parent: Entry | None = None
    notes: tuple[str, ...] = ()
    calls: int = 0
    base: "tuple[int, array[int]] | None" = None

    def forgotten(self) -> "Recalled":
        """The same history with nothing to take from it but the parent's common beginning."""
        return replace(self, known={}, anchor=None, base=None)


@dataclass(frozen=True)
class Scope:
    """Where and for whom to look. Turns before `start` are rendered anew in any case."""

    tenant: str
    key: bytes
    model: str
    head: bytes
    tools: Sequence[ToolSpec] = ()
    start: int = 0
    session: str | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    """One turn on the chain: the value before it, the value with it, whose turn it is.

    `calls` is the number of calls in the turns before it.
    """

    before: bytes
    chain: bytes
    entry: str | None
    calls: int


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
        # A client's link in the chain -> our own link and entry: what was recognised once.
        self._links: OrderedDict[bytes, tuple[bytes, str | None]] = OrderedDict()
        # The last walk of a session, to go on from.
        self._walks: OrderedDict[tuple[str, str], tuple[tuple[Turn, ...], list[_Step]]] = (
            OrderedDict()
        )

    def see(self, turn: Turn) -> Seen:
        """The digest and handles of a turn."""
        return self._digests.of(turn)

    async def recall(self, turns: tuple[Turn, ...], scope: Scope) -> Recalled:
        """What is known of these turns."""
        notes: list[str] = []
        steps = await self._walk(turns, scope, notes)
        chain = steps[-1].chain if steps else _START
        digests = tuple(step.chain for step in steps)
        if self._replay == "client":
            return Recalled(chain, digests)
        places = [at for at, turn in enumerate(turns) if turn.role == "assistant"]
        found = await self._anchor(places, steps, scope)
        if found is not None:
            at, parent, whole = found
            calls = steps[at].calls
            return Recalled(chain, digests, {at: parent}, at, whole, parent, tuple(notes), calls)
        known = await self._all_known(turns, places, steps, scope, notes)
        last = await self._last_known(places, steps, scope)
        if last is None:
            return Recalled(chain, digests, known, notes=tuple(notes))
        parent, whole = last
        base = await self._base(turns, places, steps, scope)
        calls = steps[base[0]].calls if base is not None else 0
        return Recalled(chain, digests, known, None, whole, parent, tuple(notes), calls, base)

    async def _walk(self, turns: tuple[Turn, ...], scope: Scope, notes: list[str]) -> list[_Step]:
        """The chain over the turns, from where the session's last walk still holds."""
        steps = self._resume(turns, scope)
        chain = steps[-1].chain if steps else _START
        calls = steps[-1].calls if steps else 0
        for at in range(len(steps), len(turns)):
            turn = turns[at]
            seen = self._digests.of(turn)
            calls += len(self._digests.of(turns[at - 1]).call_ids) if at else 0
            linked = link(scope.key, chain, seen.digest)
            step = _Step(chain, linked, None, calls)
            if turn.role == "assistant":
                last = at + 2 >= len(turns)
                step = await self._recognise(turn, step, scope, fresh=last, notes=notes)
            steps.append(step)
            chain = step.chain
        if scope.session is not None:
            self._remember_walk((scope.tenant, scope.session), turns, steps)
        return steps

    def _resume(self, turns: tuple[Turn, ...], scope: Scope) -> list[_Step]:
        """Steps of the last walk that these turns begin with. Known turns are the same objects."""
        if scope.session is None:
            return []
        walked, steps = self._walks.get((scope.tenant, scope.session), ((), []))
        same = len(walked) - 2  # the last turns are looked up again: they may be known by now
        while same > 0 and walked[:same] != turns[:same]:
            same //= 2
        return steps[: max(same, 0)]

    def _remember_walk(
        self, session: tuple[str, str], turns: tuple[Turn, ...], steps: list[_Step]
    ) -> None:
        self._walks[session] = (turns, steps)
        self._walks.move_to_end(session)
        if len(self._walks) > 256:
            self._walks.popitem(last=False)

    async def _recognise(
        self, turn: Turn, step: _Step, scope: Scope, *, fresh: bool, notes: list[str]
    ) -> _Step:
        """An assistant turn's step: the entry's own link where the turn is the entry's."""
        copy = step.chain + self._digests.of(turn).copy
        known = self._links.get(copy)
        if known is not None and (known[1] is not None or not fresh):
            return _Step(step.before, *known, step.calls)
        entry = await self._find(turn, step, scope, notes)
        if entry is not None and entry.before == step.before:
            known = (entry.chain, entry.id)
        else:
            known = (step.chain, entry.id if entry is not None else None)
        self._links[copy] = known
        if len(self._links) > self._most:
            self._links.popitem(last=False)
        return _Step(step.before, *known, step.calls)

    async def _find(self, turn: Turn, step: _Step, scope: Scope, notes: list[str]) -> Entry | None:
        """The one entry that this turn is, if there is exactly one."""
        seen = self._digests.of(turn)
        handled = await self._by_handles(seen, scope)
        if handled:
            if self._replay != "exact":
                handled = [e for e in handled if same_turn(e, turn, scope.tools)]
                if not handled:
                    notes.append("edited_turn")
            return _only(handled, notes)
        found = await self._ledger.by_chain(scope.tenant, step.chain)
        fitting = [e for e in found if e.model == scope.model and same_turn(e, turn, scope.tools)]
        return _only(fitting, notes)

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

    async def _last_known(
        self, places: list[int], steps: list[_Step], scope: Scope
    ) -> "tuple[Entry, array[int]] | None":
        """The nearest entry whose prompt is at hand."""
        for at in reversed(places):
            entry = await self._entry(steps[at], scope)
            whole = await self._ledger.whole(entry) if entry is not None else None
            if entry is not None and whole is not None:
                return entry, whole
        return None

    async def _anchor(
        self, places: list[int], steps: list[_Step], scope: Scope
    ) -> "tuple[int, Entry, array[int]] | None":
        """The last turn that is known together with all that came before it."""
        for at in reversed(places):
            if at < scope.start:
                return None
            entry = await self._entry(steps[at], scope)
            if entry is None or (entry.before, entry.head) != (steps[at].before, scope.head):
                continue
            whole = await self._ledger.whole(entry)
            if whole is not None:
                return at, entry, whole
        return None

    async def _base(
        self, turns: tuple[Turn, ...], places: list[int], steps: list[_Step], scope: Scope
    ) -> "tuple[int, array[int]] | None":
        """The last answer to a user, before the start, whose prompt is as it was."""
        for at in reversed(places):
            if at >= scope.start or at == 0 or turns[at - 1].role in ("assistant", "tool"):
                continue
            entry = await self._entry(steps[at], scope)
            if entry is None or (entry.before, entry.head) != (steps[at].before, scope.head):
                continue
            whole = await self._ledger.whole(entry)
            if whole is not None:
                return at, whole[: len(whole) - len(unpack(entry.generated))]
        return None

    async def _entry(self, step: _Step, scope: Scope) -> Entry | None:
        return None if step.entry is None else await self._ledger.get(scope.tenant, step.entry)

    async def _all_known(
        self,
        turns: tuple[Turn, ...],
        places: list[int],
        steps: list[_Step],
        scope: Scope,
        notes: list[str],
    ) -> dict[int, Entry]:
        """The entries of all turns that may be spliced; from their seals, where none is stored."""
        known: dict[int, Entry] = {}
        for at in places:
            if at < scope.start:
                continue
            entry = await self._entry(steps[at], scope)
            if entry is None:
                following = next((turns[later] for later in places if later > at), None)
                entry = self._restorer.restore(
                    turns[at], following, scope.tenant, scope.model, scope.tools, notes
                )
            if entry is not None:
                known[at] = entry
        return known


def _only(entries: list[Entry], notes: list[str]) -> Entry | None:
    """The entry, if all candidates were made of the same tokens."""
    if len({entry.generated for entry in entries}) > 1:
        notes.append("ambiguous_turn")
        return None
    return entries[0] if entries else None
