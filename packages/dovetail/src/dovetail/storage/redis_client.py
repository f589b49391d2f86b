"""A Redis server that may be away: then it has no answer, and nobody waits long for that."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ServerGone
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as ServerSlow

from dovetail.storage.faults import Faults

_PATIENCE = 0.5  # seconds for one operation
_PAUSE = 1.0  # seconds without trying, after the server was found away
_UNSURE = 60.0  # seconds after that in which others may still bring what they could not

_T = TypeVar("_T")


class RedisServer:
    """The connection of one store, which `what` names among its `faults`."""

    __slots__ = (
        "_away_until",
        "_clock",
        "_failed_at",
        "_patience",
        "_prefix",
        "faults",
        "redis",
    )

    def __init__(
        self,
        url: str,
        *,
        what: str,
        prefix: str,
        patience: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience = _PATIENCE if patience is None else patience
        self.redis: Redis = Redis.from_url(
            url,
            socket_timeout=self._patience,
            socket_connect_timeout=self._patience,
            # Once more at once: a connection of the pool may be from before a restart.
            retry=Retry(NoBackoff(), 1),
        )
        self._prefix = prefix
        self._clock = clock
        self._away_until = 0.0
        self._failed_at: float | None = None
        self.faults = Faults(what, clock)

    @property
    def unsure(self) -> bool:
        """Whether it was away, and not long ago."""
        return self._failed_at is not None and self._clock() - self._failed_at < _UNSURE

    def key(self, tenant: str, kind: str, name: str) -> str:
        """The braces make one cluster slot of a tenant; hashed, its name cannot forge a key."""
        owner = hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"{self._prefix}:{{{owner}}}:{kind}:{name}"

    async def ask(
        self, act: Callable[[], Awaitable[_T]], patience: float | None = None
    ) -> _T | None:
        """The server's answer, or None if there is none to be had soon."""
        if self._clock() < self._away_until:
            self._fail(None)
            return None
        try:
            async with asyncio.timeout(patience or self._patience):
                answer = await act()
        except (ServerGone, ServerSlow, TimeoutError, OSError) as error:
            self._away_until = self._clock() + _PAUSE
            self._fail(error)
        except RedisError as error:  # it is there, and refuses: out of memory, read only
            self._fail(error, away=False)
        else:
            self.faults.answered()
            return answer
        return None

    async def greet(self) -> None:
        """Ask whether it is there: where it is not, that is told."""
        await self.ask(self.redis.ping)

    async def close(self) -> None:
        """Close the connections."""
        await self.redis.aclose()

    def _fail(self, error: Exception | None, *, away: bool = True) -> None:
        self._failed_at = self._clock()
        self.faults.unanswered(error, away=away)
