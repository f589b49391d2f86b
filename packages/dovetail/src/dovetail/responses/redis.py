"""Responses in Redis, for several frontends. They expire by age; the server bounds the memory.

A server that is away never delays an answer for long: responses are then unknown, and new ones
are not kept, until it is back.
"""

import time
from collections.abc import Sequence

from dovetail.responses.backend import (
    DEFAULT_MAX_AGE_SECONDS,
    Clock,
    ResponseStats,
    StoredResponse,
    decode_response,
    encode_response,
)
from dovetail.storage.faults import StoreError, StoreFaults
from dovetail.storage.redis_client import RedisClient

_SCAN_COUNT = 1000  # keys looked at in one step when counting


class RedisResponseBackend:
    """A store shared over the network. All keys of a tenant fall in one cluster slot."""

    __slots__ = ("_client", "_prefix", "_redis", "_ttl_ms")

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "dovetail",
        max_age: float = DEFAULT_MAX_AGE_SECONDS,
        timeout: float | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._client = RedisClient(
            url, name="responses", prefix=prefix, timeout=timeout, clock=clock
        )
        self._redis = self._client.redis
        self._prefix = prefix
        self._ttl_ms = max(1, round(max_age * 1000))

    @property
    def faults(self) -> StoreFaults:
        """What the server did not answer, and what it does not have for that."""
        return self._client.faults

    async def ping(self) -> None:
        """Tells in the log where the server is not there."""
        await self._client.ping()

    async def get(self, tenant: str, id: str) -> StoredResponse | None:
        """The response, or None if this tenant has none of that id."""
        failed = self.faults.failures
        body = await self._client.call(lambda: self._redis.get(self._key(tenant, id)))
        if body is None and self.faults.failures > failed:
            raise StoreError("the store of responses does not answer")
        found = decode_response(body) if isinstance(body, bytes) else None
        return found if found is not None and found.tenant == tenant else None

    async def put(self, response: StoredResponse) -> None:
        """Keep it, or count it as lost."""
        key, body = self._key(response.tenant, response.id), encode_response(response)
        if await self._client.call(lambda: self._redis.set(key, body, px=self._ttl_ms)) is None:
            self.faults.record_loss()

    async def delete(self, tenant: str, id: str) -> bool:
        """Forget it. StoreError where the server is away: nobody may believe that it is done."""
        found = await self._client.call(lambda: self._redis.delete(self._key(tenant, id)))
        if found is None:
            raise StoreError("the store of responses does not answer; try again")
        return bool(found)

    async def get_existing_ids(self, tenant: str, ids: Sequence[str]) -> set[str] | None:
        """Which of these are there."""

        async def look() -> set[str]:
            async with self._redis.pipeline(transaction=False) as pipe:
                for id in ids:
                    pipe.exists(self._key(tenant, id))
                found = await pipe.execute()
            return {id for id, there in zip(ids, found, strict=True) if there}

        return await self._client.call(look)

    async def touch(self, tenant: str, ids: Sequence[str]) -> None:
        """These were used again."""

        async def renew() -> None:
            async with self._redis.pipeline(transaction=False) as pipe:
                for id in ids:
                    pipe.pexpire(self._key(tenant, id), self._ttl_ms)
                await pipe.execute()

        await self._client.call(renew)

    async def stats(self) -> ResponseStats:
        """How much is held. Walks over the server's keys, in steps: not for a busy loop."""
        return await self._client.call(self._count, timeout_seconds=60.0) or ResponseStats(0, 0)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _key(self, tenant: str, id: str) -> str:
        return self._client.make_key(tenant, "response", id)

    async def _count(self) -> ResponseStats:
        count = held = 0
        async for key in self._redis.scan_iter(f"{self._prefix}:*:response:*", count=_SCAN_COUNT):
            count, held = count + 1, held + await self._redis.strlen(key)
        return ResponseStats(count, held)
