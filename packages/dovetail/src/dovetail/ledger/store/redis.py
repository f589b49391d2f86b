"""Entries in Redis, for several frontends. The server bounds the memory; entries expire by age.

A server that is away is never a reason to fail or delay a request: turns are then unknown, and new
ones are not kept, until it is back.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ServerGone
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as ServerSlow

from dovetail.ledger.entry import Entry
from dovetail.ledger.store.codec import decode_entry, encode_entry
from dovetail.ledger.store.store import MAX_AGE, NEWEST, Clock, StoreStats, call_keys

_PATIENCE = 0.5  # seconds for one operation
_PAUSE = 1.0  # seconds without trying, after the server was found away
_SCAN = 1000  # keys looked at in one step when counting

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class RedisStore:
    """A store shared over the network.

    An entry is a hash: its body, and the names of the indexes it is in, which live as long as it
    does. The indexes are sorted sets of ids. All keys of a tenant fall in one cluster slot.
    `failed` counts what the server did not answer, and `lost` the entries that were not kept so.
    """

    __slots__ = (
        "_away_until",
        "_clock",
        "_life",
        "_patience",
        "_prefix",
        "_redis",
        "_told",
        "failed",
        "lost",
    )

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "dovetail",
        max_age: float = MAX_AGE,
        patience: float = _PATIENCE,
        clock: Clock = time.monotonic,
    ) -> None:
        self._redis: Redis = Redis.from_url(
            url,
            socket_timeout=patience,
            socket_connect_timeout=patience,
            # Once more at once: a connection of the pool may be from before a restart.
            retry=Retry(NoBackoff(), 1),
        )
        self._prefix = prefix
        self._life = max(1, round(max_age * 1000))
        self._patience = patience
        self._clock = clock
        self._away_until = 0.0
        self._told: set[str] = set()
        self.failed = 0
        self.lost = 0

    async def get(self, tenant: str, id: str) -> Entry | None:
        """The entry, or None if this tenant has none of that id."""
        key = self._key(tenant, "entry", id)
        body = await self._ask(lambda: self._redis.hget(key, "body"))
        entry = decode_entry(body) if isinstance(body, bytes) else None
        return entry if entry is not None and entry.tenant == tenant else None

    async def by_call(self, tenant: str, call_key: str) -> tuple[str, ...]:
        """Ids of the entries that made this call, newest first."""
        return await self._newest(self._key(tenant, "call", call_key))

    async def by_chain(self, tenant: str, chain: bytes) -> tuple[str, ...]:
        """Ids of the entries whose `chain` is this, newest first."""
        return await self._newest(self._key(tenant, "chain", chain.hex()))

    async def put(self, entry: Entry) -> None:
        """Keep it, or count it as lost."""
        if await self._ask(lambda: self._put(entry)) is None:
            self.lost += 1

    async def touch(self, tenant: str, ids: Iterable[str]) -> None:
        """These were used again, and so were the indexes that find them."""
        keys = [self._key(tenant, "entry", id) for id in ids]
        if keys:
            await self._ask(lambda: self._touch(keys))

    async def version(self) -> int | None:
        """The server does not tell."""
        return None

    async def stats(self) -> StoreStats:
        """How much is held. Walks over the server's keys, in steps: not for a busy loop."""
        return await self._ask(self._count, patience=60.0) or StoreStats(0, 0)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    def _key(self, tenant: str, kind: str, name: str) -> str:
        """The braces make one cluster slot of a tenant; hashed, its name cannot forge a key."""
        owner = hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"{self._prefix}:{{{owner}}}:{kind}:{name}"

    async def _newest(self, key: str) -> tuple[str, ...]:
        ids = await self._ask(lambda: self._redis.zrevrange(key, 0, NEWEST - 1))
        return tuple(id.decode() for id in cast("list[bytes]", ids or []))

    async def _put(self, entry: Entry) -> bool:
        key = self._key(entry.tenant, "entry", entry.id)
        indexes = [self._key(entry.tenant, "call", name) for name in call_keys(entry)]
        indexes.append(self._key(entry.tenant, "chain", entry.chain.hex()))
        order = await self._redis.incr(self._key(entry.tenant, "order", ""))
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(key, mapping={"body": encode_entry(entry), "indexes": "\n".join(indexes)})
            pipe.pexpire(key, self._life)
            for index in indexes:
                pipe.zadd(index, {entry.id: order}, nx=True)
                pipe.zremrangebyrank(index, 0, -NEWEST - 1)
                pipe.pexpire(index, self._life)
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

    async def _ask(
        self, act: Callable[[], Awaitable[_T]], patience: float | None = None
    ) -> _T | None:
        """The server's answer, or None if there is none to be had soon."""
        if self._clock() < self._away_until:
            self.failed += 1
            return None
        try:
            async with asyncio.timeout(patience or self._patience):
                answer = await act()
        except (ServerGone, ServerSlow, TimeoutError, OSError) as error:
            self._away_until = self._clock() + _PAUSE
            self._tell_once("away", error)
        except RedisError as error:  # it is there, and refuses: out of memory, read only
            self._tell_once("refuses", error)
        else:
            self._tell_back()
            return answer
        self.failed += 1
        return None

    def _tell_once(self, state: str, error: Exception) -> None:
        if state not in self._told:
            self._told.add(state)
            _log.warning("ledger.redis_%s error=%r: turns may not be remembered", state, error)

    def _tell_back(self) -> None:
        if "away" in self._told:
            self._told.remove("away")
            _log.warning("ledger.redis_back failed=%d lost=%d", self.failed, self.lost)
