"""Finds what is to be exported, and makes samples of it, one at a time."""

from array import array
from bisect import insort
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from dovetail.ledger.entry import TOKEN_ID_TYPECODE, LedgerEntry, unpack_ids
from dovetail.ledger.export_sample import SampleStep, TrainingSample, build_sample
from dovetail.ledger.ledger import Ledger

_INDEX_ID_BYTES = array(TOKEN_ID_TYPECODE).itemsize


class BranchIndex:
    """The ends of lines, found by the prompts that begin with them.

    Only hashes are held, so that many long lines cost little; a prompt is read once, whatever the
    number of lines.
    """

    __slots__ = ("_branches_by_digest", "_lengths")

    def __init__(self) -> None:
        self._branches_by_digest: dict[bytes, list[int]] = {}
        self._lengths: list[int] = []

    def add(self, branch: int, token_ids: "array[int]") -> None:
        """The line of this number ends with this whole."""
        size = len(token_ids) * _INDEX_ID_BYTES
        digest = blake2b(token_ids.tobytes(), digest_size=16).digest()
        self._branches_by_digest.setdefault(digest, []).append(branch)
        if size not in self._lengths:
            insort(self._lengths, size)

    def find_prefixes(self, prompt: "array[int]") -> Iterator[int]:
        """The lines whose whole this prompt begins with, longest first."""
        packed = memoryview(prompt).cast("B")
        found: list[int] = []
        hashed, at = blake2b(digest_size=16), 0
        for size in self._lengths:
            if size > len(packed):
                break
            hashed.update(packed[at:size])
            at = size
            found += self._branches_by_digest.get(hashed.copy().digest(), ())
        return reversed(found)


_TOKEN_ID_BYTES = array(TOKEN_ID_TYPECODE).itemsize


def count_token_ids(entry: LedgerEntry) -> int:
    """How many ids an entry's whole has: its prompt and what was generated."""
    return entry.keep + (len(entry.suffix) + len(entry.generated)) // _TOKEN_ID_BYTES


def split_branches(entries: Mapping[str, LedgerEntry]) -> list[list[LedgerEntry]]:
    """The unbroken lines, in the order of their first turns. Each turn is in one of them."""
    following: dict[str, LedgerEntry] = {}
    for entry in entries.values():
        parent = entries.get(entry.parent or "")
        if parent is not None and entry.keep == count_token_ids(parent):
            following.setdefault(parent.id, entry)
    inner = {entry.id for entry in following.values()}
    return [_follow_branch(entry, following) for entry in entries.values() if entry.id not in inner]


def _follow_branch(first: LedgerEntry, following: Mapping[str, LedgerEntry]) -> list[LedgerEntry]:
    line = [first]
    while (entry := following.get(line[-1].id)) is not None:
        line.append(entry)
    return line


_RESPONSE_ID_CHARS = 24  # the last characters of an answer's outward id: the prefix is the API's


@dataclass(frozen=True)
class MissingBranch:
    """A line of turns that cannot be told: an entry that it grew from is no longer kept."""

    entry: str
    turns: int


class LedgerExporter:
    """What a tenant's ledger holds. It is only read."""

    def __init__(self, ledger: Ledger, tenant: str = "") -> None:
        self._ledger = ledger
        self._tenant = tenant

    async def find(self, name: str) -> dict[str, LedgerEntry]:
        """The turns of a session; else a turn and all that it grew from, by one of its ids.

        Ids are the entry's own, those of its calls, and the one under which a client knows the
        answer. Nothing where the name is not known.
        """
        ids = await self._ledger.find_by_session(self._tenant, name)
        if ids:
            return await self._add_unnamed_ancestors(await self._load_all(ids))
        ends = await self._load_all([name])
        for handle in (name, name[-_RESPONSE_ID_CHARS:]):
            if not ends:
                found = await self._ledger.find_by_call(self._tenant, handle)
                ends = {entry.id: entry for entry in reversed(found)}
        entries: dict[str, LedgerEntry] = {}
        for id in ends:
            chain = await self._ledger.load_ancestors(self._tenant, id)
            entries |= {entry.id: entry for entry in chain}
        return entries

    async def iter_samples(
        self, entries: dict[str, LedgerEntry]
    ) -> AsyncIterator[TrainingSample | MissingBranch]:
        """A sample for each unbroken line."""
        found = split_branches(entries)
        order = {id: place for place, id in enumerate(entries)}
        for group in await self._join_branches(found, order) if len(found) > 1 else [found]:
            steps = await self._load_turns(group)
            if steps is None:
                yield MissingBranch(group[0][0].id, len(group[0]))
            elif steps:
                yield build_sample(steps)

    async def _load_all(self, ids: Iterable[str]) -> dict[str, LedgerEntry]:
        found = [await self._ledger.get(self._tenant, id) for id in ids]
        return {entry.id: entry for entry in found if entry is not None}

    async def _add_unnamed_ancestors(
        self, entries: dict[str, LedgerEntry]
    ) -> dict[str, LedgerEntry]:
        """The turns of a session with those before them that were kept without any session.

        What another session has said before is prompt here, and is exported with that one.
        """
        above: dict[str, LedgerEntry] = {}
        for entry in entries.values():
            parent: str | None = entry.parent
            while parent is not None and parent not in entries and parent not in above:
                found = await self._ledger.get(self._tenant, parent)
                if found is None or found.session:
                    break
                above[parent] = found
                parent = found.parent
        return dict(reversed(above.items())) | entries

    async def _join_branches(
        self, branches: list[list[LedgerEntry]], order: Mapping[str, int]
    ) -> list[list[list[LedgerEntry]]]:
        """The lines with those that go on from each other though no entry says so.

        A turn without a handle is known by its looks, so that its child may name a twin of it from
        another session as its parent; or none, where the looks were not enough.
        """
        joints = BranchIndex()
        for at, line in enumerate(branches):
            whole = await self._ledger.load_token_ids(line[-1])
            if whole is not None:
                joints.add(at, whole)
        following: dict[int, int] = {}
        for at, line in enumerate(branches):
            prompt = await self._load_prompt(line[0])
            before = order[line[0].id]
            for other in joints.find_prefixes(prompt) if prompt is not None else ():
                if order[branches[other][-1].id] < before and other not in following:
                    following[other] = at
                    break
        firsts = [at for at in range(len(branches)) if at not in following.values()]
        return [[branches[at] for at in _follow(first, following)] for first in firsts]

    async def _load_turns(self, group: list[list[LedgerEntry]]) -> list[SampleStep] | None:
        """The turns of lines that go on from each other. None if the first has lost its prompt."""
        steps: list[SampleStep] = []
        for line in group:
            prompt = await self._load_prompt(line[0])
            if prompt is None:
                return None
            there = count_token_ids(steps[-1].entry) if steps else 0
            steps.append(SampleStep(line[0], prompt[there:]))
            steps += [SampleStep(entry, unpack_ids(entry.suffix)) for entry in line[1:]]
        return steps

    async def _load_prompt(self, entry: LedgerEntry) -> "array[int] | None":
        """All of an entry's prompt. None if an entry that it grew from is gone."""
        if entry.parent is None:
            return unpack_ids(entry.suffix)
        parent = await self._ledger.get(self._tenant, entry.parent)
        whole = await self._ledger.load_token_ids(parent) if parent is not None else None
        if whole is None or len(whole) < entry.keep:
            return None
        return whole[: entry.keep] + unpack_ids(entry.suffix)


def _follow(first: int, following: dict[int, int]) -> list[int]:
    line = [first]
    while (at := following.get(line[-1])) is not None:
        line.append(at)
    return line
