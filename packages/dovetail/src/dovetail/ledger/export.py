"""Find the turns to export and build training samples from them, one at a time."""

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
    """An index of branches, to find those whose token ids are a prefix of a prompt.

    It holds only hashes, so that long branches need little memory. A lookup reads the prompt once
    for any number of branches.
    """

    __slots__ = ("_branches_by_digest", "_lengths")

    def __init__(self) -> None:
        self._branches_by_digest: dict[bytes, list[int]] = {}
        self._lengths: list[int] = []

    def add(self, branch: int, token_ids: "array[int]") -> None:
        """Add a branch by the token ids of its last turn."""
        size = len(token_ids) * _INDEX_ID_BYTES
        digest = blake2b(token_ids.tobytes(), digest_size=16).digest()
        self._branches_by_digest.setdefault(digest, []).append(branch)
        if size not in self._lengths:
            insort(self._lengths, size)

    def find_prefixes(self, prompt: "array[int]") -> Iterator[int]:
        """Return the branches whose token ids are a prefix of this prompt, longest first."""
        packed = memoryview(prompt).cast("B")
        found: list[int] = []
        hasher, hashed_bytes = blake2b(digest_size=16), 0
        for size in self._lengths:
            if size > len(packed):
                break
            hasher.update(packed[hashed_bytes:size])
            hashed_bytes = size
            found += self._branches_by_digest.get(hasher.copy().digest(), ())
        return reversed(found)


_TOKEN_ID_BYTES = array(TOKEN_ID_TYPECODE).itemsize


def count_token_ids(entry: LedgerEntry) -> int:
    """Count the token ids of an entry: prompt and generated tokens."""
    return entry.prefix_tokens + (len(entry.suffix) + len(entry.generated)) // _TOKEN_ID_BYTES


def split_branches(entries: Mapping[str, LedgerEntry]) -> list[list[LedgerEntry]]:
    """Split entries into branches, ordered by first turn. Each turn belongs to one branch."""
    following: dict[str, LedgerEntry] = {}
    for entry in entries.values():
        parent = entries.get(entry.parent or "")
        if parent is not None and entry.prefix_tokens == count_token_ids(parent):
            following.setdefault(parent.id, entry)
    inner = {entry.id for entry in following.values()}
    return [_follow_branch(entry, following) for entry in entries.values() if entry.id not in inner]


def _follow_branch(first: LedgerEntry, following: Mapping[str, LedgerEntry]) -> list[LedgerEntry]:
    branch = [first]
    while (entry := following.get(branch[-1].id)) is not None:
        branch.append(entry)
    return branch


_RESPONSE_ID_CHARS = 24  # a public response id ends with these; its prefix depends on the API


@dataclass(frozen=True)
class MissingBranch:
    """A branch that cannot be exported: an ancestor is no longer stored."""

    entry: str
    turns: int


class LedgerExporter:
    """Exports the ledger of a tenant, without writing to it."""

    def __init__(self, ledger: Ledger, tenant: str = "") -> None:
        self._ledger = ledger
        self._tenant = tenant

    async def find(self, name: str) -> dict[str, LedgerEntry]:
        """Find the turns of a session, else a turn and its ancestors by one of its ids.

        A turn has the id of its entry, the ids of its calls, and the public id of the response.
        Returns an empty dict for an unknown name.
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
        """Yield a sample for each branch."""
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
        """Add the ancestors that were recorded without a session.

        Turns of another session belong to the prompt here and are exported with that session.
        """
        ancestors: dict[str, LedgerEntry] = {}
        for entry in entries.values():
            parent: str | None = entry.parent
            while parent is not None and parent not in entries and parent not in ancestors:
                found = await self._ledger.get(self._tenant, parent)
                if found is None or found.session:
                    break
                ancestors[parent] = found
                parent = found.parent
        return dict(reversed(ancestors.items())) | entries

    async def _join_branches(
        self, branches: list[list[LedgerEntry]], order: Mapping[str, int]
    ) -> list[list[list[LedgerEntry]]]:
        """Join branches that continue each other although no entry links them.

        A turn without a handle is recognized by its chain. Its child may therefore name an
        identical turn of another session as its parent, or no parent if the chain was ambiguous.
        """
        index = BranchIndex()
        for at, branch in enumerate(branches):
            token_ids = await self._ledger.load_token_ids(branch[-1])
            if token_ids is not None:
                index.add(at, token_ids[:])
        following: dict[int, int] = {}
        for at, branch in enumerate(branches):
            prompt = await self._load_prompt(branch[0])
            before = order[branch[0].id]
            for other in index.find_prefixes(prompt) if prompt is not None else ():
                if order[branches[other][-1].id] < before and other not in following:
                    following[other] = at
                    break
        firsts = [at for at in range(len(branches)) if at not in following.values()]
        return [
            [branches[at] for at in _follow_branch_indexes(first, following)] for first in firsts
        ]

    async def _load_turns(self, group: list[list[LedgerEntry]]) -> list[SampleStep] | None:
        """Return the turns of branches that continue each other, or None if a prompt is missing."""
        steps: list[SampleStep] = []
        for branch in group:
            prompt = await self._load_prompt(branch[0])
            if prompt is None:
                return None
            known_ids = count_token_ids(steps[-1].entry) if steps else 0
            steps.append(SampleStep(branch[0], prompt[known_ids:]))
            steps += [SampleStep(entry, unpack_ids(entry.suffix)) for entry in branch[1:]]
        return steps

    async def _load_prompt(self, entry: LedgerEntry) -> "array[int] | None":
        """Return the complete prompt of an entry, or None if an ancestor is missing."""
        if entry.parent is None:
            return unpack_ids(entry.suffix)
        parent = await self._ledger.get(self._tenant, entry.parent)
        token_ids = await self._ledger.load_token_ids(parent) if parent is not None else None
        if token_ids is None or len(token_ids) < entry.prefix_tokens:
            return None
        return token_ids[: entry.prefix_tokens] + unpack_ids(entry.suffix)


def _follow_branch_indexes(first: int, following: dict[int, int]) -> list[int]:
    indexes = [first]
    while (at := following.get(indexes[-1])) is not None:
        indexes.append(at)
    return indexes
