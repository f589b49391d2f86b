"""A Redis client that fails fast while the server is unavailable."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from dovetail.storage.faults import StoreFaults

_TIMEOUT_SECONDS = 0.5  # per operation
_BACKOFF_SECONDS = 1.0  # no connection attempts for this long after a failure
_RECENT_FAILURE_SECONDS = 60.0  # other processes may still be retrying writes that failed

_T = TypeVar("_T")


class RedisClient:
    """The Redis connection of one store. `name` identifies the store in `faults`."""

    __slots__ = (
        "_clock",
        "_failed_at",
        "_prefix",
        "_retry_at",
        "_timeout",
        "faults",
        "redis",
    )

    def __init__(
        self,
        url: str,
        *,
        name: str,
        prefix: str,
        timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout = _TIMEOUT_SECONDS if timeout is None else timeout
        self.redis: Redis = Redis.from_url(
            url,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            # Retry once immediately: a pooled connection may predate a restart of the server.
            retry=Retry(NoBackoff(), 1),
        )
        self._prefix = prefix
        self._clock = clock
        self._retry_at = 0.0
        self._failed_at: float | None = None
        self.faults = StoreFaults(name, clock)

    @property
    def recently_failed(self) -> bool:
        """Whether the server was recently unavailable."""
        return (
            self._failed_at is not None
            and self._clock() - self._failed_at < _RECENT_FAILURE_SECONDS
        )

    def make_key(self, tenant: str, kind: str, name: str) -> str:
        """Build a key with the hashed tenant. The braces map a tenant to one cluster slot."""
        owner = hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"{self._prefix}:{{{owner}}}:{kind}:{name}"

    async def call(
        self, operation: Callable[[], Awaitable[_T]], timeout_seconds: float | None = None
    ) -> _T | None:
        """Run an operation. Returns None if it fails or times out."""
        if self._clock() < self._retry_at:
            self._fail(None)
            return None
        try:
            async with asyncio.timeout(timeout_seconds or self._timeout):
                result = await operation()
        except (RedisConnectionError, RedisTimeoutError, TimeoutError, OSError) as error:
            self._retry_at = self._clock() + _BACKOFF_SECONDS
            self._fail(error)
        except RedisError as error:  # reachable but rejected: out of memory, read only
            self._fail(error, unavailable=False)
        else:
            self.faults.record_success()
            return result
        return None

    async def ping(self) -> None:
        """Check the connection and log a failure."""
        await self.call(self.redis.ping)

    async def close(self) -> None:
        """Close the connections."""
        await self.redis.aclose()

    def _fail(self, error: Exception | None, *, unavailable: bool = True) -> None:
        self._failed_at = self._clock()
        self.faults.record_failure(error, unavailable=unavailable)
