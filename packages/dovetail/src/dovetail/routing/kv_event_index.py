"""The index of KV caches that is fed by the KV events of vLLM and SGLang replicas.

Every process of the server and every frontend subscribes to all replicas, so that their indexes
agree without exchanging anything. The approximate index replaces it for replicas whose events do
not arrive, and supplements it for prompts that were just sent, whose events are still to come.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic

from dovetail.engines.engine import EngineRequest
from dovetail.engines.kv_cache import KvCacheInfo
from dovetail.routing.block_hashes import DynamoHashes
from dovetail.routing.kv_checks import CHECK_DELAYS_SECONDS, SubscribedReplica
from dovetail.routing.kv_endpoints import (
    KvEventAddress,
    KvEventAddresses,
    probe_publisher,
)
from dovetail.routing.kv_service import MAX_QUERY_BLOCKS, KvService
from dovetail.routing.prefix_index import (
    DEFAULT_CAPACITY_TOKENS,
    ApproximateIndex,
    IndexStatus,
    PrefixMatch,
    hash_request,
)
from dovetail.routing.prompt_hashes import INDEX_BLOCK_TOKENS, PromptHasher
from dovetail_model import DovetailError

DEFAULT_BLOCK_TOKENS = 16
#: How long a prompt counts as cached where it was sent, although its events have not arrived.
PENDING_SECONDS = 5.0
#: The service ignores salts without it.
SALT_PREFIX = "dynamo-cache-salt:"

_log = logging.getLogger(__name__)

#: Queries the server at a URL.
InfoSource = Callable[[str], Awaitable[KvCacheInfo]]


class KvEventIndex:
    """The index of one model.

    `block_tokens`: the block size of the replicas; None if the first one reports it.
    `has_salts`: the events of the engine contain salts.
    """

    def __init__(
        self,
        service: KvService,
        addresses: KvEventAddresses,
        fetch_info: InfoSource,
        *,
        block_tokens: int | None = None,
        capacity_tokens: int = DEFAULT_CAPACITY_TOKENS,
        has_salts: bool = True,
    ) -> None:
        self._service = service
        self._addresses = addresses
        self._fetch_info = fetch_info
        self._capacity_tokens = capacity_tokens
        self._has_salts = has_salts
        self._replicas: dict[int, SubscribedReplica] = {}
        self._pending: deque[tuple[float, int, Sequence[int]]] = deque()
        self._event_failures = 0
        self._block_tokens = block_tokens
        self._set_block_tokens(block_tokens or DEFAULT_BLOCK_TOKENS)

    @property
    def status(self) -> IndexStatus:
        replicas = self._replicas.values()
        return IndexStatus(
            {one.replica: "events" if one.uses_events else "requests" for one in replicas},
            len(self._index),
            sum(one.info.blocks or 0 for one in replicas if one.uses_events),
            self._event_failures,
        )

    async def find(self, request: EngineRequest) -> PrefixMatch:
        hashes = await hash_request(self._hasher, self._indexed_request(request))
        indexed = hashes.sequences[self._stride - 1 :: self._stride]
        approximate = self._index.overlaps(indexed)
        exact = await self._query(hashes, len(request.prompt))
        pending = self._pending_overlaps(hashes.sequences)
        overlaps = {}
        for replica, one in self._replicas.items():
            if one.uses_events and replica in exact:
                tokens = max(exact[replica], pending.get(replica, 0))
                if not one.is_confirmed or tokens == MAX_QUERY_BLOCKS * self._hasher.block_tokens:
                    tokens = max(tokens, approximate.get(replica, 0))
            else:
                tokens = approximate.get(replica, 0)
            if tokens:
                overlaps[replica] = tokens
        return PrefixMatch(overlaps, indexed, hashes)

    def record(self, replica: int, match: PrefixMatch) -> None:
        self._index.record(replica, match.hashes)
        if match.engine_hashes is not None and match.engine_hashes.sequences:
            expiry = monotonic() + PENDING_SECONDS
            self._pending.append((expiry, replica, match.engine_hashes.sequences))

    def confirm_prefill(self, replica: int, match: PrefixMatch) -> None:
        """Check from time to time that the events of a prefill arrive."""
        one, hashes = self._replicas.get(replica), match.engine_hashes
        if one is None or hashes is None or not one.is_check_due:
            return
        one.check = asyncio.create_task(self._check(one, hashes))

    def engine_salt(self, salt: str | None) -> str | None:
        return SALT_PREFIX + salt if salt and self._has_salts else salt

    def release_session(self, session: str) -> None:
        self._hasher.forget(session)

    async def add(self, replica: int, url: str | None) -> None:
        await self.remove(replica)
        one = self._replicas[replica] = SubscribedReplica(replica, url)
        if url is None:
            return
        try:
            one.info = await self._fetch_info(url)
        except DovetailError as error:  # added again when the replica recovers
            one.reject(f"the replica is not reachable: {error.message}")
            return
        if self._replicas.get(replica) is not one:
            return  # meanwhile the replica was removed, or added again
        try:
            self._check_cache(one.info)
            one.address = self._find_address(url, one.info)
        except ValueError as error:
            one.reject(str(error))
            return
        await self._service.subscribe(replica, one.address, self._hasher.block_tokens)
        unreachable = await probe_publisher(one.address.events)
        if unreachable is not None:
            one.has_failed = True
            one.log("kv_events_missing", unreachable)

    async def remove(self, replica: int) -> None:
        self._index.forget(replica)
        one = self._replicas.pop(replica, None)
        if one is not None and one.check is not None:
            one.check.cancel()
        self._pending = deque(entry for entry in self._pending if entry[1] != replica)
        await self._service.unsubscribe(replica)

    async def stop(self) -> None:
        for one in self._replicas.values():
            if one.check is not None:
                one.check.cancel()
        self._service.close()

    def _set_block_tokens(self, block_tokens: int) -> None:
        """Use a block size. The approximate index has a hash for every few blocks."""
        self._hasher = PromptHasher(block_tokens)
        self._stride = max(1, INDEX_BLOCK_TOKENS // block_tokens)
        tokens = self._stride * block_tokens
        self._index = ApproximateIndex(tokens, self._capacity_tokens // tokens)

    def _check_cache(self, info: KvCacheInfo) -> None:
        """Raise `ValueError` if the events of a replica cannot be used."""
        if info.ranks > 1:
            raise ValueError(
                f"it has {info.ranks} data-parallel ranks, and requests do not select one; "
                "run a server per rank"
            )
        if self._block_tokens is None and info.block_tokens is not None:
            self._block_tokens = info.block_tokens
            self._set_block_tokens(info.block_tokens)
        elif info.block_tokens not in (None, self._hasher.block_tokens):
            raise ValueError(
                f"its KV cache has blocks of {info.block_tokens} tokens, but the index has blocks "
                f"of {self._hasher.block_tokens} (--kv-block-size); all replicas of a model must "
                "have the same block size"
            )

    def _find_address(self, url: str, info: KvCacheInfo) -> KvEventAddress:
        """Return where a replica publishes. Raise `ValueError` for the address of another one."""
        address = self._addresses.resolve(url, info)
        for other in self._replicas.values():
            if other.address is not None and other.address.events == address.events:
                raise ValueError(
                    f"{address.events} is the address of {other.url}; name the address of each "
                    f"replica: --kv-events {url}=tcp://HOST:PORT"
                )
        return address

    def _indexed_request(self, request: EngineRequest) -> EngineRequest:
        if self._has_salts or request.cache_salt is None:
            return request
        return EngineRequest(
            request.id,
            request.prompt,
            request.max_tokens,
            session=request.session,
            adapter=request.adapter,
        )

    async def _query(self, hashes: DynamoHashes, tokens: int) -> Mapping[int, int]:
        """Return the cached leading tokens of each replica that has events."""
        try:
            found = await self._service.overlaps(hashes, tokens)
        except Exception as error:  # routing must not fail with the index
            self._event_failures += 1
            fields = {"reason": f"{type(error).__name__}: {error}"}
            _log.error("kv_index_failed", extra={"fields": fields})
            return {}
        size = self._hasher.block_tokens
        return {replica: blocks * size for replica, blocks in found.items()}

    def _pending_overlaps(self, sequences: Sequence[int]) -> dict[int, int]:
        now, found = monotonic(), dict[int, int]()
        while self._pending and self._pending[0][0] < now:
            self._pending.popleft()
        for _, replica, sent in self._pending:
            tokens = _common_blocks(sent, sequences) * self._hasher.block_tokens
            found[replica] = max(tokens, found.get(replica, 0))
        return found

    async def _check(self, one: SubscribedReplica, hashes: DynamoHashes) -> None:
        """Search the index for the blocks of a prompt that a replica has prefilled."""
        try:
            wanted = min(len(hashes.blocks), MAX_QUERY_BLOCKS)
            if not wanted:
                return
            for delay in CHECK_DELAYS_SECONDS:
                await asyncio.sleep(delay)
                found = await self._service.overlaps(hashes, wanted * self._hasher.block_tokens)
                if found.get(one.replica, 0) >= wanted:
                    one.confirm()
                    return
            self._event_failures += 1
            await one.fail(lambda: self._resubscribe(one))
        except Exception as error:  # the next check may succeed
            fields = {"reason": f"{type(error).__name__}: {error}"}
            _log.error("kv_index_failed", extra={"fields": fields})
        finally:
            one.check = None

    async def _resubscribe(self, one: SubscribedReplica) -> None:
        if one.address is not None and self._replicas.get(one.replica) is one:
            await self._service.subscribe(one.replica, one.address, self._hasher.block_tokens)


def _common_blocks(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many leading blocks two prompts share. Each hash covers all blocks before it."""
    low, high = 0, min(len(first), len(second))
    if not high or first[0] != second[0]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if first[middle - 1] == second[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
