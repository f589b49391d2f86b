"""A ledger store in Redis, shared by several servers. Redis limits the memory; entries expire.

An unreachable Redis server never fails or delays a request: lookups find nothing, and new entries
are stored when the server is back. Otherwise one Dovetail server would recognize these turns and
the others would not, and each would build a different prompt for the same conversation.
"""

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

from dovetail.ledger.cache import estimate_entry_bytes
from dovetail.ledger.entry import LedgerEntry
from dovetail.ledger.redis_keys import LedgerKeys
from dovetail.ledger.redis_lease import RedisLease
from dovetail.ledger.store import (
    MAX_AGE_SECONDS,
    MAX_LISTED_SESSIONS,
    MAX_LOOKUP_IDS,
    MAX_LOOKUP_MARKS,
    MAX_SESSION_TURNS,
    ChainLookup,
    Clock,
    LedgerStats,
    OpenTurn,
    SessionStats,
    TurnMark,
    closes_turn,
    decode_entry,
    encode_entry,
    make_call_keys,
)
from dovetail.ledger.unannounced import UnannouncedTurns
from dovetail.storage.faults import StoreError, StoreFaults
from dovetail.storage.lru import LruCache
from dovetail.storage.redis_client import RedisClient

_SCAN_KEYS = 1000  # keys per SCAN step
_MAX_PENDING_BYTES = 32 << 20  # entries that wait for Redis; the oldest are dropped first
_INDEX_AGE_FACTOR = 4  # the chains of expired and lost turns are stored this much longer
_RETRY_INTERVAL_SECONDS = 1.0  # between attempts to store pending entries
_LIST_TIMEOUT_SECONDS = 60.0  # for operations over many keys, outside requests

_T = TypeVar("_T")


class RedisLedgerStore:
    """A store shared over the network.

    An entry is a Redis hash with its body and the keys of the indexes that contain it, which
    expire with it. An index is a sorted set of entry ids, ordered by the time of the Redis server.
    Another sorted set holds the session names of a tenant, ordered by their last turns.

    No operation relies on a transaction, which a cluster does not have over several nodes: see
    `_put` and `_find_by_chain`.
    """

    __slots__ = (
        "_client",
        "_keys",
        "_last_order",
        "_lease",
        "_pending",
        "_prefix",
        "_redis",
        "_retry_task",
        "_ttl_ms",
        "_unannounced",
    )

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "dovetail",
        max_age: float = MAX_AGE_SECONDS,
        timeout: float | None = None,
        clock: Clock = time.monotonic,
        folder: Path | None = None,
    ) -> None:
        self._client = RedisClient(url, name="ledger", prefix=prefix, timeout=timeout, clock=clock)
        self._redis = self._client.redis
        self._keys = LedgerKeys(self._client)
        self._prefix = prefix
        self._ttl_ms = max(1, round(max_age * 1000))
        self._pending: LruCache[tuple[str, str], LedgerEntry] = LruCache(
            max_size=_MAX_PENDING_BYTES,
            size_of=estimate_entry_bytes,
            on_evict=lambda key, entry: self.faults.record_loss(),
        )
        self._last_order = 0.0
        self._retry_task: asyncio.Task[None] | None = None
        self._unannounced = UnannouncedTurns(self._announce, self.close_turn)
        self._lease = RedisLease(
            self._client,
            gap_ttl_ms=self._ttl_ms,
            folder=folder,
            can_renew=lambda: not self._pending and not self._unannounced,
        )

    @property
    def is_degraded(self) -> bool:
        """Whether recent lookups may have missed existing entries."""
        return self._client.recently_failed

    @property
    def faults(self) -> StoreFaults:
        """The failures of the server, and the number of lost entries."""
        return self._client.faults

    async def start(self) -> None:
        """Acquire the lease. A server without one is unknown to the others."""
        await self._lease.ensure()

    async def get(self, tenant: str, id: str) -> LedgerEntry | None:
        """Return the entry, or None if the tenant has no entry with this id."""
        key = self._keys.entry(tenant, id)
        body = await self._client.call(lambda: self._redis.hget(key, "body"), repeat=True)
        entry = decode_entry(body) if isinstance(body, bytes) else None
        return entry if entry is not None and entry.tenant == tenant else None

    async def find_by_call(self, tenant: str, call_key: str) -> tuple[str, ...]:
        """Return the ids of the entries that made this call, newest first."""
        return await self._newest_ids(self._keys.call(tenant, call_key))

    async def find_by_chain(self, tenant: str, chain: bytes, chain_before: bytes) -> ChainLookup:
        """Return the turns that have, or may have, this chain.

        Ids remain in the index of a chain long after their entries have expired.
        """
        index = self._keys.chain(tenant, chain, chain_before)
        opened = self._keys.open(tenant, chain_before)
        return _require_reply(
            await self._client.call(lambda: self._find_by_chain(index, opened), repeat=True)
        )

    async def find_by_session(self, tenant: str, session: str) -> tuple[str, ...]:
        """Return the ids of the entries of this session, oldest first. Some may have expired."""
        key = self._keys.session(tenant, session)
        ids = await self._client.call(
            lambda: self._redis.zrange(key, 0, -1), timeout_seconds=_LIST_TIMEOUT_SECONDS
        )
        return tuple(id.decode() for id in cast("list[bytes]", _require_reply(ids)))

    async def list_sessions(self, tenant: str) -> tuple[SessionStats, ...]:
        """Return the sessions of a tenant, newest first. Counts may include expired turns."""
        return _require_reply(
            await self._client.call(
                lambda: self._list_sessions(tenant), timeout_seconds=_LIST_TIMEOUT_SECONDS
            )
        )

    async def open_turn(self, turn: OpenTurn) -> None:
        """Announce a turn."""
        await self._lease.ensure()
        await self._announce(turn)

    async def close_turn(self, turn: OpenTurn) -> None:
        """Withdraw an announced turn."""
        self._unannounced.discard(turn.id)
        key = self._keys.open(turn.tenant, turn.chain_before)
        await self._client.call(lambda: self._redis.hdel(key, turn.id), repeat=True)

    @property
    def gap_at(self) -> float:
        """The time of the last gap; 0 if there is none."""
        return self.faults.gap_at

    async def record_gap(self, turn: OpenTurn, reason: str) -> None:
        """Record that a turn is served although it could not be announced.

        It is announced when the server is back. Until then the lease is not renewed.
        """
        self.faults.record_gap(time.time(), reason)
        if self._unannounced.add(turn):
            self._lease.has_lost_turns = True
        if self._lease.gap_file is not None:
            self._lease.gap_file.record(time.time())
        self._start_retrying()
        await self._lease.wait_expired()

    async def put(self, entry: LedgerEntry) -> None:
        """Store an entry, or queue it as pending until the server is back."""
        if await self._try_put(entry):
            await self._flush_pending()
        else:
            self._defer(entry)

    async def touch(self, tenant: str, ids: Iterable[str]) -> None:
        """Mark entries and the indexes that contain them as used."""
        keys = [self._keys.entry(tenant, id) for id in ids]
        if keys:
            await self._client.call(lambda: self._touch(keys))

    async def version(self) -> int | None:
        """Return None: Redis does not report a version."""
        return None

    async def stats(self) -> LedgerStats:
        """Return the number and size of the stored entries. Scans all keys of the server."""
        return await self._client.call(
            self._count, timeout_seconds=_LIST_TIMEOUT_SECONDS
        ) or LedgerStats(0, 0)

    async def close(self) -> None:
        """Close the connections."""
        if self._retry_task is not None:
            self._retry_task.cancel()
        await self._flush_pending()
        await self._unannounced.announce_all()
        await self._lease.close()
        await self._client.close()

    async def _try_put(self, entry: LedgerEntry) -> bool:
        if await self._client.call(lambda: self._put(entry), repeat=True) is None:
            return False
        if closes_turn(entry):
            self._unannounced.discard(entry.id)
        return True

    def _defer(self, entry: LedgerEntry) -> None:
        key = (entry.tenant, entry.id)
        if key in self._pending:
            return
        self._pending.put(key, entry)
        self.faults.pending = len(self._pending)
        self.faults.record_late()
        self._start_retrying()

    def _start_retrying(self) -> None:
        if self._retry_task is None or self._retry_task.done():
            self._retry_task = asyncio.create_task(self._retry())

    async def _retry(self) -> None:
        while self._pending or self._unannounced:
            await asyncio.sleep(_RETRY_INTERVAL_SECONDS)
            await self._flush_pending()
            await self._unannounced.announce_all()

    async def _announce(self, turn: OpenTurn) -> None:
        _require_reply(await self._client.call(lambda: self._open_turn(turn), repeat=True))

    async def _flush_pending(self) -> None:
        """Store pending entries until one fails. Safe to run concurrently."""
        while self._pending:
            key, entry = self._pending.pop_oldest()
            if not await self._try_put(entry):
                self._pending.put(key, entry)
                return
            self.faults.pending = len(self._pending)

    async def _newest_ids(self, key: str) -> tuple[str, ...]:
        ids = await self._client.call(
            lambda: self._redis.zrevrange(key, 0, MAX_LOOKUP_IDS - 1), repeat=True
        )
        return tuple(id.decode() for id in cast("list[bytes]", ids or []))

    async def _open_turn(self, turn: OpenTurn) -> bool:
        key = self._keys.open(turn.tenant, turn.chain_before)
        async with self._client.pipeline() as pipe:
            pipe.hset(key, turn.id, turn.session)
            pipe.pexpire(key, self._ttl_ms * _INDEX_AGE_FACTOR)
            await pipe.execute()
        return True

    async def _find_by_chain(self, index: str, opened: str) -> ChainLookup:
        # In this order: a turn that is announced after the check has not been seen by any client,
        # and a turn that is closed after the open turns were read is in the index by then.
        async with self._redis.pipeline(transaction=False) as pipe:
            self._lease.add_check(pipe)
            checked = await pipe.execute() if self._client.is_cluster else []
            self._client.add_command(pipe, "info", "server", **self._client.target_node(index))
            pipe.hscan(opened, 0, count=MAX_LOOKUP_MARKS)
            pipe.zrevrange(index, 0, MAX_LOOKUP_IDS - 1)
            *more, info, (cursor, open_turns), ids = await pipe.execute()
        marks = [TurnMark(id.decode(), session.decode()) for id, session in open_turns.items()]
        if cursor:  # there are more, of any session
            marks.insert(0, TurnMark("", ""))
        return ChainLookup(
            tuple(id.decode() for id in ids),
            tuple(marks[:MAX_LOOKUP_MARKS]),
            self._lease.is_exhaustive([*checked, *more], info),
        )

    async def _list_sessions(self, tenant: str) -> tuple[SessionStats, ...]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in self._keys.session_lists(tenant):
                pipe.zrevrange(key, 0, MAX_LISTED_SESSIONS - 1, withscores=True)
            lists = await pipe.execute()
            listed = cast("list[tuple[bytes, float]]", [one for part in lists for one in part])
            listed = sorted(listed, key=lambda one: one[1], reverse=True)[:MAX_LISTED_SESSIONS]
            names = [(name.decode(), used) for name, used in listed]
            for name, _ in names:
                pipe.zcard(self._keys.session(tenant, name))
            counts = await pipe.execute()
        return tuple(
            SessionStats(name, turns, used)
            for (name, used), turns in zip(names, counts, strict=True)
            if turns
        )

    async def _put(self, entry: LedgerEntry) -> bool:
        """Store an entry: its body, then its indexes. The turn is open until all are stored.

        A lookup that finds the id of an entry finds its body, too, and one that finds the turn
        closed finds it in the index of its chain. If this is interrupted, it is repeated.
        """
        names = make_call_keys(entry)
        chain = self._keys.chain(entry.tenant, entry.chain, entry.chain_before)
        max_ids = {
            **{self._keys.call(entry.tenant, name): MAX_LOOKUP_IDS for name in names},
            chain: MAX_LOOKUP_IDS,
        }
        if entry.session:
            max_ids[self._keys.session(entry.tenant, entry.session)] = MAX_SESSION_TURNS
        order = self._next_order()
        async with self._client.pipeline() as pipe:
            key = self._keys.entry(entry.tenant, entry.id)
            pipe.hset(key, mapping={"body": encode_entry(entry), "indexes": "\n".join(max_ids)})
            pipe.pexpire(key, self._ttl_ms)
            if self._client.is_cluster:  # other nodes execute the following in parallel
                await pipe.execute()
            for index, maximum in max_ids.items():
                if index != chain:
                    self._add_to_index(pipe, index, entry.id, order, maximum)
            if entry.session:
                self._list_session(pipe, entry)
            self._add_to_index(pipe, chain, entry.id, order, max_ids[chain])
            if closes_turn(entry):
                pipe.hdel(self._keys.open(entry.tenant, entry.chain_before), entry.id)
            await pipe.execute()
        return True

    def _next_order(self) -> float:
        """Return the score of a new entry: higher than all earlier ones of this process."""
        self._last_order = max(self._lease.estimate_server_time(), self._last_order + 1e-6)
        return self._last_order

    def _add_to_index(self, pipe: Any, index: str, id: str, order: float, max_ids: int) -> None:
        pipe.zadd(index, {id: order}, nx=True)
        pipe.zremrangebyrank(index, 0, -max_ids - 1)
        pipe.pexpire(index, self._index_ttl_ms(index))

    def _list_session(self, pipe: Any, entry: LedgerEntry) -> None:
        listed, now = self._keys.session_list(entry.tenant, entry.session), time.time()
        pipe.zadd(listed, {entry.session: now})
        pipe.zremrangebyscore(listed, 0, now - self._ttl_ms / 1000)
        pipe.zremrangebyrank(listed, 0, -MAX_LISTED_SESSIONS - 1)
        pipe.pexpire(listed, self._ttl_ms)

    async def _touch(self, keys: list[str]) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hget(key, "indexes")
            found = await pipe.execute()
            for key, indexes in zip(keys, found, strict=True):
                for name in [key, *indexes.decode().split("\n")] if indexes else []:
                    pipe.pexpire(name, self._index_ttl_ms(name))
            await pipe.execute()

    def _index_ttl_ms(self, name: str) -> int:
        """Return the age of an index. Those of chains show that an expired turn existed."""
        is_chain = name.split("}", 1)[-1].startswith(":chain:")
        return self._ttl_ms * _INDEX_AGE_FACTOR if is_chain else self._ttl_ms

    async def _count(self) -> LedgerStats:
        entries = total_bytes = 0
        keys: list[bytes] = []
        async for key in self._redis.scan_iter(f"{self._prefix}:*:entry:*", count=_SCAN_KEYS):
            keys.append(key)
            if len(keys) == _SCAN_KEYS:
                entries, total_bytes = (
                    entries + len(keys),
                    total_bytes + await self._sum_sizes(keys),
                )
                keys = []
        return LedgerStats(entries + len(keys), total_bytes + await self._sum_sizes(keys))

    async def _sum_sizes(self, keys: list[bytes]) -> int:
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hstrlen(key, "body")
            return sum(await pipe.execute())


def _require_reply(reply: _T | None) -> _T:
    """Return the reply, or raise StoreError if there is none: an empty result is a reply."""
    if reply is None:
        raise StoreError("the Redis server of the ledger is unavailable")
    return reply
