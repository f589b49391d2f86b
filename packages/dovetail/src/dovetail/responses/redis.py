"""Responses in Redis, for several frontends. They expire by age; the server bounds the memory.

A server that is away never delays an answer for long: responses are then unknown, and new ones
are not kept, until it is back.
"""

import time
from collections.abc import Sequence

from dovetail.responses.backend import MAX_AGE, Clock, Stats, decode, encode
from dovetail.responses.response import KeptResponse
from dovetail.storage.fault import StoreError
from dovetail.storage.faults import StoreFaults
from dovetail.storage.redis_client import RedisClient

_SCAN = 1000  # keys looked at in one step when counting


class RedisResponses:
    """A store shared over the network. All keys of a tenant fall in one cluster slot."""

    __slots__ = ("_life", "_prefix", "_redis", "_server")

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
            url, name="responses", prefix=prefix, timeout=patience, clock=clock
        )
        self._redis = self._server.redis
        self._prefix = prefix
        self._life = max(1, round(max_age * 1000))

    @property
    def faults(self) -> StoreFaults:
        """What the server did not answer, and what it does not have for that."""
        return self._server.faults

    async def greet(self) -> None:
        """Tells in the log where the server is not there."""
        await self._server.ping()

    async def get(self, tenant: str, id: str) -> KeptResponse | None:
        """The response, or None if this tenant has none of that id."""
        failed = self.faults.failures
        body = await self._server.call(lambda: self._redis.get(self._key(tenant, id)))
        if body is None and self.faults.failures > failed:
            raise StoreError("the store of responses does not answer")
        found = decode(body) if isinstance(body, bytes) else None
        return found if found is not None and found.tenant == tenant else None

    async def put(self, response: KeptResponse) -> None:
        """Keep it, or count it as lost."""
        key, body = self._key(response.tenant, response.id), encode(response)
        if await self._server.call(lambda: self._redis.set(key, body, px=self._life)) is None:
            self.faults.record_loss()

    async def delete(self, tenant: str, id: str) -> bool:
        """Forget it. StoreError where the server is away: nobody may believe that it is done."""
        found = await self._server.call(lambda: self._redis.delete(self._key(tenant, id)))
        if found is None:
            raise StoreError("the store of responses does not answer; try again")
        return bool(found)

    async def alive(self, tenant: str, ids: Sequence[str]) -> set[str] | None:
        """Which of these are there."""

        async def look() -> set[str]:
            async with self._redis.pipeline(transaction=False) as pipe:
                for id in ids:
                    pipe.exists(self._key(tenant, id))
                found = await pipe.execute()
            return {id for id, there in zip(ids, found, strict=True) if there}

        return await self._server.call(look)

    async def touch(self, tenant: str, ids: Sequence[str]) -> None:
        """These were used again."""

        async def renew() -> None:
            async with self._redis.pipeline(transaction=False) as pipe:
                for id in ids:
                    pipe.pexpire(self._key(tenant, id), self._life)
                await pipe.execute()

        await self._server.call(renew)

    async def stats(self) -> Stats:
        """How much is held. Walks over the server's keys, in steps: not for a busy loop."""
        return await self._server.call(self._count, timeout=60.0) or Stats(0, 0)

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    def _key(self, tenant: str, id: str) -> str:
        return self._server.make_key(tenant, "response", id)

    async def _count(self) -> Stats:
        count = held = 0
        async for key in self._redis.scan_iter(f"{self._prefix}:*:response:*", count=_SCAN):
            count, held = count + 1, held + await self._redis.strlen(key)
        return Stats(count, held)
