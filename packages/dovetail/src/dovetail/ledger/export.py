"""Finds what is to be exported, and makes samples of it, one at a time."""

from array import array
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass

from dovetail.ledger.entry import Entry, unpack
from dovetail.ledger.export_sample import Sample, Step, merge
from dovetail.ledger.joints import Joints
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.lines import length, lines

_NUMBER = 24  # the last characters of an answer's outward id: the prefix is the API's


@dataclass(frozen=True)
class Missing:
    """A line of turns that cannot be told: an entry that it grew from is no longer kept."""

    entry: str
    turns: int


class Export:
    """What a tenant's ledger holds. It is only read."""

    def __init__(self, ledger: Ledger, tenant: str = "") -> None:
        self._ledger = ledger
        self._tenant = tenant

    async def find(self, name: str) -> dict[str, Entry]:
        """The turns of a session; else a turn and all that it grew from, by one of its ids.

        Ids are the entry's own, those of its calls, and the one under which a client knows the
        answer. Nothing where the name is not known.
        """
        ids = await self._ledger.by_session(self._tenant, name)
        if ids:
            return await self._with_unnamed(await self._all(ids))
        ends = await self._all([name])
        for handle in (name, name[-_NUMBER:]):
            if not ends:
                found = await self._ledger.by_call(self._tenant, handle)
                ends = {entry.id: entry for entry in reversed(found)}
        entries: dict[str, Entry] = {}
        for id in ends:
            chain = await self._ledger.export_chain(self._tenant, id)
            entries |= {entry.id: entry for entry in chain}
        return entries

    async def samples(self, entries: dict[str, Entry]) -> AsyncIterator[Sample | Missing]:
        """A sample for each unbroken line."""
        found = lines(entries)
        order = {id: place for place, id in enumerate(entries)}
        for group in await self._joined(found, order) if len(found) > 1 else [found]:
            steps = await self._steps(group)
            if steps is None:
                yield Missing(group[0][0].id, len(group[0]))
            elif steps:
                yield merge(steps)

    async def _all(self, ids: Iterable[str]) -> dict[str, Entry]:
        found = [await self._ledger.get(self._tenant, id) for id in ids]
        return {entry.id: entry for entry in found if entry is not None}

    async def _with_unnamed(self, entries: dict[str, Entry]) -> dict[str, Entry]:
        """The turns of a session with those before them that were kept without any session.

        What another session has said before is prompt here, and is exported with that one.
        """
        above: dict[str, Entry] = {}
        for entry in entries.values():
            parent: str | None = entry.parent
            while parent is not None and parent not in entries and parent not in above:
                found = await self._ledger.get(self._tenant, parent)
                if found is None or found.session:
                    break
                above[parent] = found
                parent = found.parent
        return dict(reversed(above.items())) | entries

    async def _joined(
        self, found: list[list[Entry]], order: Mapping[str, int]
    ) -> list[list[list[Entry]]]:
        """The lines with those that go on from each other though no entry says so.

        A turn without a handle is known by its looks, so that its child may name a twin of it from
        another session as its parent; or none, where the looks were not enough.
        """
        joints = Joints()
        for at, line in enumerate(found):
            whole = await self._ledger.whole(line[-1])
            if whole is not None:
                joints.ends(at, whole)
        following: dict[int, int] = {}
        for at, line in enumerate(found):
            prompt = await self._prompt(line[0])
            before = order[line[0].id]
            for other in joints.before(prompt) if prompt is not None else ():
                if order[found[other][-1].id] < before and other not in following:
                    following[other] = at
                    break
        firsts = [at for at in range(len(found)) if at not in following.values()]
        return [[found[at] for at in _from(first, following)] for first in firsts]

    async def _steps(self, group: list[list[Entry]]) -> list[Step] | None:
        """The turns of lines that go on from each other. None if the first has lost its prompt."""
        steps: list[Step] = []
        for line in group:
            prompt = await self._prompt(line[0])
            if prompt is None:
                return None
            there = length(steps[-1].entry) if steps else 0
            steps.append(Step(line[0], prompt[there:]))
            steps += [Step(entry, unpack(entry.suffix)) for entry in line[1:]]
        return steps

    async def _prompt(self, entry: Entry) -> "array[int] | None":
        """All of an entry's prompt. None if an entry that it grew from is gone."""
        if entry.parent is None:
            return unpack(entry.suffix)
        parent = await self._ledger.get(self._tenant, entry.parent)
        whole = await self._ledger.whole(parent) if parent is not None else None
        if whole is None or len(whole) < entry.keep:
            return None
        return whole[: entry.keep] + unpack(entry.suffix)


def _from(first: int, following: dict[int, int]) -> list[int]:
    line = [first]
    while (at := following.get(line[-1])) is not None:
        line.append(at)
    return line
