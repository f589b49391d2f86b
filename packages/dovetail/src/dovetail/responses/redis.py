"""A response backend in Redis, shared by several servers.

Responses expire by age; the Redis server limits the memory. While Redis is unavailable, responses
are not found and new ones are not stored; a short timeout limits the delay of requests. Writes are
repeated during the first seconds of an outage, so that a short one loses no response.
"""

import asyncio
import hashlib
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

_SCAN_COUNT = 1000  # keys per SCAN step
_WRITE_SECONDS = 4.0  # writes are repeated for this long after the first one that failed
_RETRY_SECONDS = 0.5

#: Replaces a value if its digest is still the one of the value that was read. Unlike WATCH, it
#: needs no connection of its own, and runs in a cluster.
_REPLACE_SCRIPT = """
local stored = redis.call('GET', KEYS[1])
if not stored or redis.sha1hex(stored) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""


class RedisResponseBackend:
    """A backend shared over the network. No operation needs two keys to have the same slot."""

    __slots__ = ("_client", "_failing_since", "_prefix", "_redis", "_ttl_ms")

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
        self._failing_since: float | None = None  # the first failed write of an outage
        self._prefix = prefix
        self._ttl_ms = max(1, round(max_age * 1000))

    @property
    def faults(self) -> StoreFaults:
        """Failed operations and lost writes."""
        return self._client.faults

    async def ping(self) -> None:
        """Check the connection and log a failure."""
        await self._client.ping()

    async def get(self, tenant: str, id: str) -> StoredResponse | None:
        """Return the response, or None if the tenant has no response with this id."""
        failures = self.faults.failures
        key = self._key(tenant, id)
        body = await self._client.call(lambda: self._redis.get(key), repeat=True)
        if body is None and self.faults.failures > failures:
            raise StoreError("the response store is unavailable")
        response = decode_response(body) if isinstance(body, bytes) else None
        return response if response is not None and response.tenant == tenant else None

    async def put(self, response: StoredResponse) -> None:
        """Store a response, or record the loss if Redis stays unavailable."""
        key, body = self._key(response.tenant, response.id), encode_response(response)
        while await self._client.call(lambda: self._redis.set(key, body, px=self._ttl_ms)) is None:
            now = time.monotonic()
            self._failing_since = self._failing_since or now
            if now - self._failing_since > _WRITE_SECONDS:
                self.faults.record_loss()
                return
            await asyncio.sleep(_RETRY_SECONDS)
        self._failing_since = None

    async def swap(self, old: StoredResponse, new: StoredResponse) -> bool:
        """Replace a response, unless the stored one is no longer `old`."""
        key, body = self._key(old.tenant, old.id), encode_response(new)

        async def replace() -> bool:
            stored = await self._redis.get(key)
            if not isinstance(stored, bytes) or decode_response(stored) != old:
                return False
            digest = hashlib.sha1(stored, usedforsecurity=False).hexdigest()
            return bool(
                await self._redis.eval(_REPLACE_SCRIPT, 1, key, digest, body, str(self._ttl_ms))
            )

        swapped = await self._client.call(replace)
        if swapped is None:
            raise StoreError("the response store is unavailable; retry later")
        return swapped

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete a response. Raises StoreError if Redis is unavailable, so that clients retry."""
        deleted = await self._client.call(lambda: self._redis.delete(self._key(tenant, id)))
        if deleted is None:
            raise StoreError("the response store is unavailable; retry later")
        return bool(deleted)

    async def get_existing_ids(self, tenant: str, ids: Sequence[str]) -> set[str] | None:
        """Return the ids that exist, or None if Redis is unavailable."""

        async def check() -> set[str]:
            async with self._redis.pipeline(transaction=False) as pipe:
                for id in ids:
                    pipe.exists(self._key(tenant, id))
                exists = await pipe.execute()
            return {id for id, exist in zip(ids, exists, strict=True) if exist}

        return await self._client.call(check, repeat=True)

    async def touch(self, tenant: str, ids: Sequence[str]) -> None:
        """Mark responses as used."""

        async def renew() -> None:
            async with self._redis.pipeline(transaction=False) as pipe:
                for id in ids:
                    pipe.pexpire(self._key(tenant, id), self._ttl_ms)
                await pipe.execute()

        await self._client.call(renew)

    async def stats(self) -> ResponseStats:
        """Count the stored responses. Scans all keys, so call it rarely."""
        return await self._client.call(self._count, timeout_seconds=60.0) or ResponseStats(0, 0)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _key(self, tenant: str, id: str) -> str:
        return self._client.make_key(tenant, "response", id)

    async def _count(self) -> ResponseStats:
        count = size = 0
        async for key in self._redis.scan_iter(f"{self._prefix}:*:response:*", count=_SCAN_COUNT):
            count, size = count + 1, size + await self._redis.strlen(key)
        return ResponseStats(count, size)
