"""A usage store in Redis, shared by several servers.

All keys are in one slot of a cluster. An hour is a hash: a field is the JSON of a `UsageKey`, a
colon and the name of a counter. A script applies a complete batch, and only once.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from dovetail.storage.faults import StoreError, StoreFaults
from dovetail.storage.redis_client import RedisClient
from dovetail.usage.counts import (
    COUNTERS,
    DAY_SECONDS,
    DIMENSIONS,
    OTHER_SESSIONS,
    UsageCounts,
    UsageKey,
    floor_day,
)
from dovetail.usage.store import (
    DEFAULT_MAX_AGE_SECONDS,
    DEFAULT_MAX_SESSIONS,
    SPENT_MAX_AGE_SECONDS,
    STALE_SECONDS,
    OpenRequest,
    Spent,
    SpentKey,
    UsageBatch,
    UsageQuery,
    UsageRow,
    sum_by_hour,
    sum_spent,
)

_WRITE_SECONDS = 5.0  # no request waits for writes
_READ_SECONDS = 60.0  # for reports
_CHECK_SECONDS = 0.5  # for budgets: a request waits for it
_HOURS_PER_READ = 200
_MAX_CACHED_SESSIONS = 10_000
_BATCH_AGE_SECONDS = DAY_SECONDS  # for how long a batch may be sent again

# ARGV: the operations as JSON. `finish` corrects the count of a request that was taken for one of
# a crashed process.
_APPLY = """
if not redis.call('SET', KEYS[1], '1', 'NX', 'EX', ARGV[1]) then return 0 end
for _, op in ipairs(cjson.decode(ARGV[2])) do
  if op[1] == 'add' then
    redis.call('HINCRBY', op[2], op[3], op[4])
    redis.call('EXPIREAT', op[2], op[5])
  elseif op[1] == 'open' then
    redis.call('HSET', op[2], op[3], op[4])
  elseif op[1] == 'finish' then
    if redis.call('HDEL', op[2], op[3]) == 0 then redis.call('HINCRBY', op[4], op[5], -1) end
  else
    redis.call('ZADD', op[2], op[3], op[4])
  end
end
return 1
"""
_ADD_SESSION = """
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 1 end
if redis.call('SCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('EXPIREAT', KEYS[1], ARGV[3])
return 1
"""
# KEYS: the processes and the prefix of their open requests. ARGV: the time of the oldest heartbeat.
_REAP = """
for _, process in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])) do
  local open = redis.call('HVALS', KEYS[2] .. process)
  for _, value in ipairs(open) do
    local request = cjson.decode(value)
    redis.call('HINCRBY', request[1], request[2], 1)
    redis.call('EXPIREAT', request[1], request[3])
  end
  redis.call('DEL', KEYS[2] .. process)
  redis.call('ZREM', KEYS[1], process)
end
return 1
"""

_T = TypeVar("_T")
_encode = msgspec.json.encode


class RedisUsageStore:
    """A store shared over the network."""

    __slots__ = ("_client", "_clock", "_max_age", "_max_sessions", "_prefix", "_redis", "_sessions")

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "dovetail",
        max_age: float = DEFAULT_MAX_AGE_SECONDS,
        max_sessions: int = DEFAULT_MAX_SESSIONS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = RedisClient(url, name="usage", prefix=prefix, timeout=_WRITE_SECONDS)
        self._redis = self._client.redis
        self._prefix = f"{prefix}:{{usage}}"
        self._max_age = max_age
        self._max_sessions = max_sessions
        self._clock = clock
        self._sessions: dict[
            tuple[int, str, str], bool
        ] = {}  # day, tenant, session: whether it is named

    @property
    def faults(self) -> StoreFaults:
        """Failed operations and lost writes."""
        return self._client.faults

    async def apply(self, batch: UsageBatch) -> None:
        """Apply a batch in one script."""
        await self._check_sessions([*batch.opened, *(one.request for one in batch.finished)])
        name = f"{self._prefix}:batch:{batch.process}:{batch.number}"
        operations = _encode(self._operations(batch))
        await self._call(lambda: self._redis.eval(_APPLY, 1, name, _BATCH_AGE_SECONDS, operations))

    async def maintain(self, process: str | None) -> None:
        """Note that a process lives, and count the requests of crashed ones as interrupted."""
        now, processes = self._clock(), f"{self._prefix}:processes"
        if process is not None:
            seen = {process: now}
            await self._call(lambda: self._redis.zadd(processes, seen, xx=True))
        oldest = now - STALE_SECONDS
        await self._call(
            lambda: self._redis.eval(_REAP, 2, processes, f"{self._prefix}:open:", oldest)
        )
        first = now - self._max_age
        await self._call(
            lambda: self._redis.zremrangebyscore(f"{self._prefix}:hours", "-inf", first)
        )

    async def read(self, query: UsageQuery) -> list[UsageRow]:
        """Return the sums of each group."""
        since = self._clock() - self._max_age if query.since is None else query.since
        until = "+inf" if query.until is None else f"({query.until}"
        found: Any = await self._call(
            lambda: self._redis.zrangebyscore(f"{self._prefix}:hours", int(since), until)
        )
        hours = [int(hour) for hour in found]
        rows: dict[tuple[str | int, ...], UsageRow] = {}
        for at in range(0, len(hours), _HOURS_PER_READ):
            part = hours[at : at + _HOURS_PER_READ]
            for hour, fields in zip(part, await self._read_hashes(part), strict=True):
                for key, counts in _decode_counts(fields):
                    _add_row(rows, query.by, (hour, key), counts)
        await self._add_open(rows, query, int(since))
        if not query.by and not rows:
            rows[()] = UsageRow(())
        return [rows[group] for group in sorted(rows)]

    async def read_spent(self, keys: Sequence[SpentKey]) -> list[Spent]:
        """Return what was spent in each period."""

        async def get() -> list[list[bytes | None]]:
            async with self._redis.pipeline(transaction=False) as pipe:
                for key in keys:
                    field = _spent_field(key)
                    pipe.hmget(f"{self._prefix}:spent:{key.period}", f"{field}:t", f"{field}:c")
                results: list[list[bytes | None]] = await pipe.execute()
                return results

        found = await self._call(get, _CHECK_SECONDS)
        return [Spent(int(tokens or 0), int(cost or 0)) for tokens, cost in found]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _call(
        self, operation: Callable[[], Awaitable[_T]], timeout_seconds: float | None = None
    ) -> _T:
        result = await self._client.call(operation, timeout_seconds)
        if result is None:
            raise StoreError("the usage store is unavailable")
        return result

    async def _check_sessions(self, requests: Iterable[OpenRequest]) -> None:
        """Find out which sessions are counted by name, and record it for the day."""
        wanted = {self._session_at(one) for one in requests if one.key.session}
        unknown = sorted(wanted - self._sessions.keys())
        if not unknown:
            return

        async def add() -> list[int]:
            async with self._redis.pipeline(transaction=False) as pipe:
                for day, tenant, session in unknown:
                    name = f"{self._prefix}:sessions:{day}:{tenant}"
                    expiry = day + 7 * DAY_SECONDS
                    pipe.eval(_ADD_SESSION, 1, name, session, self._max_sessions, expiry)
                results: list[int] = await pipe.execute()
                return results

        results = await self._call(add)
        if len(self._sessions) + len(unknown) > _MAX_CACHED_SESSIONS:
            self._sessions = {at: self._sessions[at] for at in wanted - set(unknown)}
        self._sessions |= {at: bool(one) for at, one in zip(unknown, results, strict=True)}

    def _session_at(self, request: OpenRequest) -> tuple[int, str, str]:
        return floor_day(request.hour), request.key.tenant, request.key.session

    def _limit_sessions(self, request: OpenRequest) -> UsageKey:
        key = request.key
        if not key.session or self._sessions[self._session_at(request)]:
            return key
        return msgspec.structs.replace(key, session=OTHER_SESSIONS)

    def _operations(self, batch: UsageBatch) -> list[list[Any]]:
        """Return the operations of the script."""
        opened = f"{self._prefix}:open:{batch.process}"
        operations: list[list[Any]] = [
            ["seen", f"{self._prefix}:processes", str(self._clock()), batch.process]
        ]
        hours = {one.hour for one in batch.opened}
        for request in batch.opened:
            value = _encode(self._interrupted(request)).decode()
            operations.append(["open", opened, str(request.number), value])
        finished = []
        for one in batch.finished:
            if one.announced:
                hour, field, _ = self._interrupted(one.request)
                operations.append(["finish", opened, str(one.request.number), hour, field])
            key = self._limit_sessions(one.request)
            request = msgspec.structs.replace(one.request, key=key)
            finished.append(msgspec.structs.replace(one, request=request))
        for (start, key), counts in sum_by_hour(finished).items():
            hours.add(start)
            operations += self._add_counts(start, key, counts)
        for spent_key, spent in sum_spent(batch.finished).items():
            operations += self._add_spent(spent_key, spent)
        return operations + [["hour", f"{self._prefix}:hours", str(h), str(h)] for h in hours]

    def _add_counts(self, hour: int, key: UsageKey, counts: UsageCounts) -> list[list[Any]]:
        name, field = self._hour(hour), _encode(key).decode()
        values = ((counter, getattr(counts, counter)) for counter in COUNTERS)
        expiry = self._expiry(hour)
        return [["add", name, f"{field}:{n}", str(value), expiry] for n, value in values if value]

    def _add_spent(self, key: SpentKey, spent: Spent) -> list[list[Any]]:
        name, field = f"{self._prefix}:spent:{key.period}", _spent_field(key)
        expiry = str(int(self._clock()) + SPENT_MAX_AGE_SECONDS)
        return [
            ["add", name, f"{field}:t", str(spent.tokens), expiry],
            ["add", name, f"{field}:c", str(spent.cost_nanos), expiry],
        ]

    def _interrupted(self, request: OpenRequest) -> tuple[str, str, str]:
        """Return the hash and the field that count a request as interrupted, and their expiry."""
        field = f"{_encode(self._limit_sessions(request)).decode()}:interrupted"
        return self._hour(request.hour), field, self._expiry(request.hour)

    def _hour(self, hour: int) -> str:
        return f"{self._prefix}:hour:{hour}"

    def _expiry(self, hour: int) -> str:
        return str(int(hour + self._max_age) + DAY_SECONDS)

    async def _read_hashes(self, hours: Sequence[int]) -> list[dict[bytes, bytes]]:
        async def get() -> list[dict[bytes, bytes]]:
            async with self._redis.pipeline(transaction=False) as pipe:
                for hour in hours:
                    pipe.hgetall(self._hour(hour))
                results: list[dict[bytes, bytes]] = await pipe.execute()
                return results

        return await self._call(get, _READ_SECONDS)

    async def _add_open(
        self, rows: dict[tuple[str | int, ...], UsageRow], query: UsageQuery, since: int
    ) -> None:
        """Add the open requests: running ones, and those of crashed processes."""
        processes = f"{self._prefix}:processes"
        found: Any = await self._call(lambda: self._redis.zrange(processes, 0, -1, withscores=True))

        async def get() -> list[list[bytes]]:
            async with self._redis.pipeline(transaction=False) as pipe:
                for process, _ in found:
                    pipe.hvals(f"{self._prefix}:open:{process.decode()}")
                results: list[list[bytes]] = await pipe.execute()
                return results

        oldest = self._clock() - STALE_SECONDS
        for (_, seen), values in zip(found, await self._call(get, _READ_SECONDS), strict=True):
            for value in values:
                name, field, _ = msgspec.json.decode(value, type=tuple[str, str, str])
                hour = int(name.rpartition(":")[2])
                if hour < since or (query.until is not None and hour >= query.until):
                    continue
                key = msgspec.json.decode(field.removesuffix(":interrupted"), type=UsageKey)
                stale = seen < oldest
                counts = UsageCounts(interrupted=int(stale))
                _add_row(rows, query.by, (hour, key), counts, running=int(not stale))


def _add_row(
    rows: dict[tuple[str | int, ...], UsageRow],
    by: Sequence[str],
    at: tuple[int, UsageKey],
    counts: UsageCounts,
    running: int = 0,
) -> None:
    hour, key = at
    values = {name: getattr(key, name) for name in DIMENSIONS}
    values |= {"hour": hour, "day": floor_day(hour)}
    group = tuple(values[name] for name in by)
    before = rows.get(group, UsageRow(group))
    rows[group] = UsageRow(group, before.counts + counts, before.running + running)


def _decode_counts(fields: dict[bytes, bytes]) -> Iterable[tuple[UsageKey, UsageCounts]]:
    found: dict[bytes, dict[str, int]] = {}
    for field, value in fields.items():
        key, _, counter = field.rpartition(b":")
        found.setdefault(key, {})[counter.decode()] = int(value)
    for key, counters in found.items():
        known = {name: value for name, value in counters.items() if name in COUNTERS}
        yield msgspec.json.decode(key, type=UsageKey), UsageCounts(**known)


def _spent_field(key: SpentKey) -> str:
    return _encode([key.tenant, key.key]).decode()
