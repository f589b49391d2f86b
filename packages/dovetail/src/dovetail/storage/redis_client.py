"""A client of a Redis server or a Redis Cluster that fails fast while it is unavailable."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ClusterDownError, RedisClusterException, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from dovetail.storage.faults import StoreFaults

_TIMEOUT_SECONDS = 0.5  # per operation
_BACKOFF_SECONDS = 1.0  # no connection attempts for this long after a failure
_REPEAT_SECONDS = 2.0  # operations are repeated for this long after the first failure of an outage
_REPEAT_INTERVAL_SECONDS = 0.1
_MAX_REPEATS = round(_REPEAT_SECONDS / _REPEAT_INTERVAL_SECONDS)
_RECENT_FAILURE_SECONDS = 60.0  # other processes may still be retrying writes that failed

_MAX_CONNECTIONS = 10_000  # per node; a burst of requests must not fail because of the pool
_DEFAULT_PORT = 6379

#: Schemes of the URLs of a store. Those of a cluster list one or more of its nodes.
SERVER_SCHEMES = ("redis://", "rediss://", "unix://")
CLUSTER_SCHEMES = ("redis+cluster://", "rediss+cluster://")

_UNAVAILABLE = (
    RedisConnectionError,
    RedisTimeoutError,
    ClusterDownError,  # a primary failed, and no replica has replaced it yet
    RedisClusterException,  # no node of the cluster responds
    TimeoutError,
    OSError,
)
_TIMEOUTS = (RedisTimeoutError, TimeoutError)

_T = TypeVar("_T")


class RedisClient:
    """The Redis connection of one store. `name` identifies the store in `faults`.

    A short outage, and an operation that times out because the machine is busy, delay operations
    that may be repeated; a longer outage fails all operations at once, so that it delays no
    request.

    `is_cluster`: the URL names a Redis Cluster. Keys that an operation uses together have the same
    tag there and thereby the same slot. Its pipelines are not atomic: the commands for one node are
    executed in order, but others may run in between.
    """

    __slots__ = (
        "_clock",
        "_failed_at",
        "_failing_since",
        "_prefix",
        "_reconnect_at",
        "_retry_at",
        "_timeout",
        "_topology",
        "faults",
        "is_cluster",
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
        self.is_cluster = is_cluster_url(url)
        self.redis = connect(url, self._timeout)
        self._prefix = prefix
        self._clock = clock
        self._retry_at = 0.0
        self._failed_at: float | None = None
        self._failing_since: float | None = None  # the first failure after the last success
        self._reconnect_at = 0.0
        # Reads the topology of a cluster for all operations; one that times out does not cancel it.
        self._topology: asyncio.Task[Any] | None = None
        self.faults = StoreFaults(name, clock)

    @property
    def recently_failed(self) -> bool:
        """Whether the server was recently unavailable."""
        return (
            self._failed_at is not None
            and self._clock() - self._failed_at < _RECENT_FAILURE_SECONDS
        )

    def make_key(self, tenant: str, kind: str, name: str, tag: str | None = None) -> str:
        """Build a key with the hashed tenant.

        In a cluster, keys of a tenant with the same tag have the same slot. The default is the
        name, so that the keys of one tenant are spread over all nodes.
        """
        owner = hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        if self.is_cluster:
            owner = f"{owner}:{name if tag is None else tag}"
        return f"{self._prefix}:{{{owner}}}:{kind}:{name}"

    def make_common_key(self, group: str, name: str) -> str:
        """Build a key that all tenants share. Keys of one group have the same slot."""
        return f"{self._prefix}:{{{group}}}:{name}" if self.is_cluster else f"{self._prefix}:{name}"

    def pipeline(self) -> Any:
        """Create a pipeline: a transaction, except in a cluster."""
        return self.redis.pipeline(transaction=not self.is_cluster)

    def target_node(self, key: str) -> dict[str, Any]:
        """Return the arguments that send a command without a key to the node of `key`."""
        return {"target_nodes": self.redis.get_node_from_key(key)} if self.is_cluster else {}

    def target_primaries(self) -> list[dict[str, Any]]:
        """Return the arguments of `target_node` for each primary."""
        if not self.is_cluster:
            return [{}]
        return [{"target_nodes": node} for node in self.redis.get_primaries()]

    def add_command(self, pipe: Any, name: str, *args: str, **target: Any) -> None:
        """Add a command without a key to a pipeline, for the node of `target_node`."""
        if self.is_cluster:  # the library has no method for it, because it knows no node
            pipe.execute_command(name.upper(), *args, **target)
        else:
            getattr(pipe, name)(*args)

    async def call(
        self,
        operation: Callable[[], Awaitable[_T]],
        timeout_seconds: float | None = None,
        *,
        repeat: bool = False,
    ) -> _T | None:
        """Run an operation. Returns None if it fails or times out.

        `repeat`: it may be executed more than once, and is repeated at the start of an outage.
        """
        timeout = timeout_seconds or self._timeout
        if not repeat:
            if self._clock() >= self._retry_at:
                return (await self._attempt(operation, timeout))[0]
            self._fail(None)
            return None
        deadline: float | None = None
        for _ in range(_MAX_REPEATS):
            if self._clock() >= self._retry_at or deadline is not None:
                result, is_available = await self._attempt(operation, timeout)
                if is_available:
                    return result
            else:
                self._fail(None)
            if deadline is None:
                deadline = self._outage_start() + _REPEAT_SECONDS
            if self._clock() >= deadline:
                return None
            await asyncio.sleep(_REPEAT_INTERVAL_SECONDS)
        return None

    async def _attempt(
        self, operation: Callable[[], Awaitable[_T]], timeout_seconds: float
    ) -> tuple[_T | None, bool]:
        """Return the result, or None if it failed, and whether the server was available."""
        try:
            async with asyncio.timeout(timeout_seconds):
                if self.is_cluster:
                    await self._read_topology()
                result = await operation()
        except _UNAVAILABLE as error:
            self._retry_at = self._clock() + _BACKOFF_SECONDS
            self._fail(error)
            self._renew_topology(error)
        except RedisError as error:  # reachable but rejected: out of memory, read only
            self._fail(error, unavailable=False)
            return None, True
        else:
            self._retry_at, self._failing_since = 0.0, None
            self.faults.record_success()
            return result, True
        return None, False

    async def _read_topology(self) -> None:
        """Read the topology of the cluster, unless it is known."""
        if self._topology is None:
            self._start_reading(self.redis.initialize())
        assert self._topology is not None
        await asyncio.shield(self._topology)

    def _start_reading(self, reading: Coroutine[Any, Any, Any]) -> None:
        self._topology = asyncio.create_task(reading)
        self._topology.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _renew_topology(self, error: Exception) -> None:
        """Read the topology again after a failure: a primary may have been replaced.

        Reconnecting breaks the other operations, so it is done once per outage and second, and
        after a timeout only if nothing has succeeded since: a busy machine is no reason.
        """
        if not self.is_cluster or (self._topology is not None and not self._topology.done()):
            return
        self._topology = None
        now = self._clock()
        is_short = now - self._outage_start() < _BACKOFF_SECONDS
        if now < self._reconnect_at or (isinstance(error, _TIMEOUTS) and is_short):
            return
        self._reconnect_at = now + _BACKOFF_SECONDS
        self._start_reading(self._reconnect())

    def _outage_start(self) -> float:
        """Return the time of the first failure, or now if an operation has succeeded since."""
        return self._clock() if self._failing_since is None else self._failing_since

    async def _reconnect(self) -> None:
        await self.redis.aclose()
        await self.redis.initialize()

    async def ping(self) -> None:
        """Check the connection and log a failure."""
        await self.call(self.redis.ping)

    async def close(self) -> None:
        """Close the connections."""
        if self._topology is not None and not self._topology.done():
            self._topology.cancel()
            await asyncio.wait([self._topology])
        await self.redis.aclose()

    def _fail(self, error: Exception | None, *, unavailable: bool = True) -> None:
        self._failed_at = self._clock()
        if unavailable and self._failing_since is None:
            self._failing_since = self._failed_at
        self.faults.record_failure(error, unavailable=unavailable)


def is_cluster_url(url: str) -> bool:
    """Return whether the URL names a Redis Cluster."""
    return url.startswith(CLUSTER_SCHEMES)


def connect(url: str, timeout: float) -> Any:
    """Create the client. The types of the two clients in the library have no common base."""
    options: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "max_connections": _MAX_CONNECTIONS,
    }
    if not is_cluster_url(url):
        # Retry once immediately: a pooled connection may predate a restart of the server.
        return Redis.from_url(url, retry=Retry(NoBackoff(), 1), **options)
    first, nodes = _split_cluster_url(url)
    # The library closes all connections before it retries a pipeline, also those that other
    # operations use: on a busy machine one timeout would break everything that is in progress.
    retry = Retry(NoBackoff(), 0)
    return RedisCluster.from_url(first, startup_nodes=nodes, retry=retry, **options)


def _split_cluster_url(url: str) -> tuple[str, list[ClusterNode]]:
    """Return the URL of the first listed node, with the credentials, and all listed nodes."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    scheme = parts.scheme.removesuffix("+cluster")
    urls = [
        urlunsplit((scheme, f"{user}{at}{host}", parts.path, parts.query, ""))
        for host in hosts.split(",")
    ]
    nodes = [
        ClusterNode(one.hostname or "", one.port or _DEFAULT_PORT) for one in map(urlsplit, urls)
    ]
    return urls[0], nodes
