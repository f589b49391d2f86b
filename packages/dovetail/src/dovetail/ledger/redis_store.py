"""Entries in Redis, for several frontends. The server bounds the memory; entries expire by age.

A server that is away is never a reason to fail or delay a request: turns are then unknown, and new
ones are not kept, until it is back. Then those of the meantime follow: else one frontend would know
them and the others not, and each would make its own prompt of the same conversation for good.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar, cast

from dovetail.ledger.cache import weight
from dovetail.ledger.codec import decode_entry, encode_entry
from dovetail.ledger.entry import Entry
from dovetail.ledger.store import (
    MAX_AGE,
    MOST_SESSIONS,
    MOST_TURNS,
    NEWEST,
    Clock,
    SessionStats,
    StoreError,
    StoreStats,
    call_keys,
)
from dovetail.storage.faults import StoreFaults
from dovetail.storage.redis_client import RedisClient

_SCAN = 1000  # keys looked at in one step when counting
_LATE = 32 << 20  # bytes of entries that wait for the server to be back; the oldest go first
_AGAIN = 1.0  # seconds until they are tried again
_LIST = 60.0  # seconds for what walks over many keys; nobody waits for an answer then

_T = TypeVar("_T")


class RedisStore:
    """A store shared over the network.

    An entry is a hash: its body, and the names of the indexes it is in, which live as long as it
    does. The indexes are sorted sets of ids; the names of a tenant's sessions are one more, in the
    order of their last turns. All keys of a tenant fall in one cluster slot.
    """

    __slots__ = ("_again", "_late", "_late_bytes", "_life", "_prefix", "_redis", "_server")

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "dovetail",
        max_age: float = MAX_AGE,
        patience: float | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._server = RedisClient(
            url, name="ledger", prefix=prefix, timeout=patience, clock=clock
        )
        self._redis = self._server.redis
        self._prefix = prefix
        self._life = max(1, round(max_age * 1000))
        self._late: OrderedDict[tuple[str, str], Entry] = OrderedDict()
        self._late_bytes = 0
        self._again: asyncio.Task[None] | None = None

    @property
    def unsure(self) -> bool:
        """Whether what it did not find of late may be there all the same."""
        return self._server.recently_failed

    @property
    def faults(self) -> StoreFaults:
        """What the server did not answer, and what it does not have for that."""
        return self._server.faults

    async def get(self, tenant: str, id: str) -> Entry | None:
        """The entry, or None if this tenant has none of that id."""
        key = self._server.make_key(tenant, "entry", id)
        body = await self._server.call(lambda: self._redis.hget(key, "body"))
        entry = decode_entry(body) if isinstance(body, bytes) else None
        return entry if entry is not None and entry.tenant == tenant else None

    async def by_call(self, tenant: str, call_key: str) -> tuple[str, ...]:
        """Ids of the entries that made this call, newest first."""
        return await self._newest(self._server.make_key(tenant, "call", call_key))

    async def by_chain(self, tenant: str, chain: bytes) -> tuple[str, ...]:
        """Ids of the entries whose `chain` is this, newest first."""
        return await self._newest(self._server.make_key(tenant, "chain", chain.hex()))

    async def by_session(self, tenant: str, session: str) -> tuple[str, ...]:
        """Ids of the entries of this session, oldest first. Some of them may be gone."""
        key = self._session_key(tenant, session)
        ids = await self._server.call(lambda: self._redis.zrange(key, 0, -1), timeout=_LIST)
        return tuple(id.decode() for id in cast("list[bytes]", _told(ids)))

    async def sessions(self, tenant: str) -> tuple[SessionStats, ...]:
        """The sessions of a tenant, newest first. Turns that are gone may still be counted."""
        return _told(await self._server.call(lambda: self._sessions(tenant), timeout=_LIST))

    async def put(self, entry: Entry) -> None:
        """Keep it, now or when the server is back. Until then it is counted as waiting."""
        if await self._is_put(entry):
            await self._catch_up()
        else:
            self._put_off(entry)

    async def touch(self, tenant: str, ids: Iterable[str]) -> None:
        """These were used again, and so were the indexes that find them."""
        keys = [self._server.make_key(tenant, "entry", id) for id in ids]
        if keys:
            await self._server.call(lambda: self._touch(keys))

    async def version(self) -> int | None:
        """The server does not tell."""
        return None

    async def stats(self) -> StoreStats:
        """How much is held. Walks over the server's keys, in steps: not for a busy loop."""
        return await self._server.call(self._count, timeout=_LIST) or StoreStats(0, 0)

    async def close(self) -> None:
        """Close the connections."""
        if self._again is not None:
            self._again.cancel()
        await self._catch_up()
        await self._server.close()

    async def _is_put(self, entry: Entry) -> bool:
        return await self._server.call(lambda: self._put(entry)) is not None

    def _put_off(self, entry: Entry) -> None:
        key = (entry.tenant, entry.id)
        if key in self._late:
            return
        self._late[key] = entry
        self._late_bytes += weight(entry)
        while self._late_bytes > _LATE:
            self._late_bytes -= weight(self._late.popitem(last=False)[1])
            self.faults.record_loss()
        self.faults.pending = len(self._late)
        if self._again is None or self._again.done():
            self._again = asyncio.create_task(self._try_again())

    async def _try_again(self) -> None:
        while self._late:
            await asyncio.sleep(_AGAIN)
            await self._catch_up()

    async def _catch_up(self) -> None:
        """What was put off, for as long as the server answers. Several may be at it."""
        while self._late:
            key, entry = self._late.popitem(last=False)
            if not await self._is_put(entry):
                self._late[key] = entry
                return
            self._late_bytes -= weight(entry)
            self.faults.pending = len(self._late)

    async def _newest(self, key: str) -> tuple[str, ...]:
        ids = await self._server.call(lambda: self._redis.zrevrange(key, 0, NEWEST - 1))
        return tuple(id.decode() for id in cast("list[bytes]", ids or []))

    def _session_key(self, tenant: str, session: str) -> str:
        """Hashed: a client chooses the name."""
        return self._server.make_key(tenant, "session", hashlib.sha256(session.encode()).hexdigest())

    async def _sessions(self, tenant: str) -> tuple[SessionStats, ...]:
        listed = await self._redis.zrevrange(
            self._server.make_key(tenant, "sessions", ""), 0, MOST_SESSIONS - 1, withscores=True
        )
        names = [(name.decode(), used) for name, used in cast("list[tuple[bytes, float]]", listed)]
        async with self._redis.pipeline(transaction=False) as pipe:
            for name, _ in names:
                pipe.zcard(self._session_key(tenant, name))
            counts = await pipe.execute()
        return tuple(
            SessionStats(name, turns, used)
            for (name, used), turns in zip(names, counts, strict=True)
            if turns
        )

    async def _put(self, entry: Entry) -> bool:
        key = self._server.make_key(entry.tenant, "entry", entry.id)
        indexes = [self._server.make_key(entry.tenant, "call", name) for name in call_keys(entry)]
        indexes.append(self._server.make_key(entry.tenant, "chain", entry.chain.hex()))
        bounds = dict.fromkeys(indexes, NEWEST)
        if entry.session:
            bounds[self._session_key(entry.tenant, entry.session)] = MOST_TURNS
        order = await self._redis.incr(self._server.make_key(entry.tenant, "order", ""))
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(key, mapping={"body": encode_entry(entry), "indexes": "\n".join(bounds)})
            pipe.pexpire(key, self._life)
            for index, most in bounds.items():
                pipe.zadd(index, {entry.id: order}, nx=True)
                pipe.zremrangebyrank(index, 0, -most - 1)
                pipe.pexpire(index, self._life)
            if entry.session:
                listed, now = self._server.make_key(entry.tenant, "sessions", ""), time.time()
                pipe.zadd(listed, {entry.session: now})
                pipe.zremrangebyscore(listed, 0, now - self._life / 1000)
                pipe.zremrangebyrank(listed, 0, -MOST_SESSIONS - 1)
                pipe.pexpire(listed, self._life)
            await pipe.execute()
        return True

    async def _touch(self, keys: list[str]) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hget(key, "indexes")
            found = await pipe.execute()
            for key, indexes in zip(keys, found, strict=True):
                for name in [key, *indexes.decode().split("\n")] if indexes else []:
                    pipe.pexpire(name, self._life)
            await pipe.execute()

    async def _count(self) -> StoreStats:
        entries = held = 0
        keys: list[bytes] = []
        async for key in self._redis.scan_iter(f"{self._prefix}:*:entry:*", count=_SCAN):
            keys.append(key)
            if len(keys) == _SCAN:
                entries, held = entries + len(keys), held + await self._sizes(keys)
                keys = []
        return StoreStats(entries + len(keys), held + await self._sizes(keys))

    async def _sizes(self, keys: list[bytes]) -> int:
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hstrlen(key, "body")
            return sum(await pipe.execute())


def _told(answer: _T | None) -> _T:
    """What an operator asked for: to find nothing is not the same as to get no answer."""
    if answer is None:
        raise StoreError("the Redis server of the ledger does not answer")
    return answer
