"""The index of KV caches: which replica has which prefixes.

The approximate index assumes that a replica caches the prompts that this process sent to it, and
evicts the least recently used blocks first, the end of a prompt before its beginning. Engines do
both.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from dovetail.engines.engine import EngineRequest
from dovetail.routing.block_hashes import DynamoHashes
from dovetail.routing.prompt_hashes import INDEX_BLOCK_TOKENS, PromptHasher

#: The size of a KV cache if the settings do not define it.
DEFAULT_CAPACITY_TOKENS = 1 << 20
#: Longer additions to a prompt are hashed in a thread, so that they do not block other requests.
MAX_INLINE_TOKENS = 1 << 16


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What the replicas have cached of a prompt.

    `overlaps`: the cached leading tokens for each replica that has any; None if it is not known.
    `hashes`: the hashes of the prompt's blocks in the approximate index.
    `engine_hashes`: the hashes of the blocks of an engine, if the index has them.
    """

    overlaps: Mapping[int, int] | None
    hashes: Sequence[int] = ()
    engine_hashes: DynamoHashes | None = None


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """What an index reports for metrics.

    `sources`: the source of what is known of each replica: `events` or `requests`.
    `blocks`: the blocks in the approximate index.
    `max_event_blocks`: the blocks that the caches of replicas with events hold.
    `event_failures`: how often blocks that were prefilled did not appear in the index.
    """

    sources: Mapping[int, Literal["events", "requests"]] = field(default_factory=dict)
    blocks: int = 0
    max_event_blocks: int = 0
    event_failures: int = 0


class PrefixIndex(Protocol):
    """Finds the replicas that have a prefix of a prompt in their KV cache."""

    async def find(self, request: EngineRequest) -> PrefixMatch:
        """Return what the replicas have cached of the request's prompt."""

    def record(self, replica: int, match: PrefixMatch) -> None:
        """Record that the prompt was sent to a replica."""

    def confirm_prefill(self, replica: int, match: PrefixMatch) -> None:
        """Record that a replica has prefilled the prompt, so that its blocks are cached."""

    def engine_salt(self, salt: str | None) -> str | None:
        """Return the cache salt as engines must get it."""

    @property
    def status(self) -> IndexStatus:
        """What the index knows, for metrics."""

    def release_session(self, session: str) -> None:
        """Discard what is held for a session that has ended."""

    async def add(self, replica: int, url: str | None) -> None:
        """Add a replica, or add it again with an empty cache after it was restarted."""

    async def remove(self, replica: int) -> None:
        """Remove a replica."""

    async def stop(self) -> None:
        """Release all resources."""


class BlockCache:
    """The blocks in the KV cache of one replica.

    `capacity`: the number of blocks that it holds.
    """

    __slots__ = ("_blocks", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = max(1, capacity)
        self._blocks: OrderedDict[int, None] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, hashes: Sequence[int]) -> int:
        """Return the number of leading blocks that are cached.

        A block is evicted after all blocks that follow it, so a binary search finds the last one.
        """
        blocks = self._blocks
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def store(self, hashes: Sequence[int]) -> None:
        """Cache the blocks of a prompt and evict the least recently used ones."""
        blocks = self._blocks
        for hash in reversed(hashes[: self.capacity]):
            blocks[hash] = None
            blocks.move_to_end(hash)
        while len(blocks) > self.capacity:
            blocks.popitem(last=False)

    def clear(self) -> None:
        """Remove all blocks, as after a restart."""
        self._blocks.clear()


class ApproximateIndex:
    """The prefix caches of all replicas, as far as it follows from the requests of this process.

    `block_tokens`: the tokens of a block.
    `capacity_blocks`: the number of blocks that each replica holds.
    """

    def __init__(self, block_tokens: int, capacity_blocks: int) -> None:
        self.block_tokens = block_tokens
        self._capacity = capacity_blocks
        self._caches: dict[int, BlockCache] = {}

    def __len__(self) -> int:
        return sum(map(len, self._caches.values()))

    def overlaps(self, hashes: Sequence[int]) -> Mapping[int, int]:
        """Return the cached leading tokens of a prompt for each replica that has any."""
        found = {index: cache.match(hashes) for index, cache in self._caches.items()}
        return {index: blocks * self.block_tokens for index, blocks in found.items() if blocks}

    def record(self, replica: int, hashes: Sequence[int]) -> None:
        """Record that a prompt was sent to a replica."""
        cache = self._caches.get(replica)
        if cache is None:
            cache = self._caches[replica] = BlockCache(self._capacity)
        cache.store(hashes)

    def forget(self, replica: int) -> None:
        """Discard what a replica had cached, because it was restarted or removed."""
        self._caches.pop(replica, None)


class LocalIndex:
    """The approximate index of this process for the requests of engines."""

    def __init__(self, capacity_tokens: int = DEFAULT_CAPACITY_TOKENS) -> None:
        self._hasher = PromptHasher()
        self._index = ApproximateIndex(INDEX_BLOCK_TOKENS, capacity_tokens // INDEX_BLOCK_TOKENS)
        self._replicas: set[int] = set()

    async def find(self, request: EngineRequest) -> PrefixMatch:
        hashes = await hash_request(self._hasher, request)
        return PrefixMatch(self._index.overlaps(hashes.sequences), hashes.sequences)

    def record(self, replica: int, match: PrefixMatch) -> None:
        self._index.record(replica, match.hashes)

    def confirm_prefill(self, replica: int, match: PrefixMatch) -> None:
        """Do nothing: the prompt was recorded when it was sent."""

    def engine_salt(self, salt: str | None) -> str | None:
        return salt

    @property
    def status(self) -> IndexStatus:
        return IndexStatus(dict.fromkeys(self._replicas, "requests"), len(self._index))

    def release_session(self, session: str) -> None:
        self._hasher.forget(session)

    async def add(self, replica: int, url: str | None) -> None:
        self._index.forget(replica)
        self._replicas.add(replica)

    async def remove(self, replica: int) -> None:
        self._index.forget(replica)
        self._replicas.discard(replica)

    async def stop(self) -> None:
        """Do nothing: the index is memory of this process."""


async def hash_request(hasher: PromptHasher, request: EngineRequest) -> DynamoHashes:
    """Return the block hashes of a request's prompt without blocking the event loop."""
    ids, session, scope = request.prompt, request.session, (request.cache_salt, request.adapter)
    hashes = hasher.known_hashes(session, ids, scope)
    if len(ids) - len(hashes.blocks) * hasher.block_tokens > MAX_INLINE_TOKENS:
        hashes = await asyncio.to_thread(hasher.extend, hashes, ids, scope)
    else:
        hashes = hasher.extend(hashes, ids, scope)
    hasher.keep(session, ids, hashes, scope)
    return hashes


def salted_request(index: PrefixIndex, request: EngineRequest) -> EngineRequest:
    """Return a request with the cache salt that its engine must get."""
    salt = index.engine_salt(request.cache_salt)
    if salt == request.cache_salt:
        return request
    return msgspec.structs.replace(request, cache_salt=salt)
