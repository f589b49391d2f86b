"""A fake Redis in simulated time: the commands of the ledger store, over connections that fail.

It is not a Redis server: `ledger/test_simulated_redis.py` compares it with a real one.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from redis.exceptions import ConnectionError as RedisConnectionError

LinkMode = Literal["ok", "refuse", "lose_response", "lag"]
EPOCH = 1e9  # the time at which the clock of the loop is 0
MAX_LATENCY_SECONDS = 0.004
MAX_LAG_SECONDS = 8.0

_Command = tuple[str, tuple[Any, ...], dict[str, Any]]


class SimulatedRedisServer:
    """The data of a server. A restart loses it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._runs = 0
        self.frozen_until = 0.0  # nothing is executed before this time of the loop
        self.restart()

    def restart(self) -> None:
        self._runs += 1
        self._values: dict[str, Any] = {}
        self._expiry: dict[str, float] = {}
        self._evicted = 0

    def evict(self, dice: random.Random) -> None:
        """Evict a key, as a server does that has no memory left."""
        if self._values:
            del self._values[dice.choice(list(self._values))]
            self._evicted += 1

    def execute(self, command: _Command) -> Any:
        name, args, options = command
        return getattr(self, f"_{name}")(*args, **options)

    def _find(self, key: str) -> Any:
        expiry = self._expiry.get(key)
        if expiry is not None and expiry <= self._clock():
            self._values.pop(key, None)
            del self._expiry[key]
        return self._values.get(key)

    def _make(self, key: str) -> dict[bytes, Any]:
        found = self._find(key)
        if found is None:
            found = self._values[key] = {}
            self._expiry.pop(key, None)
        assert isinstance(found, dict)
        return found

    # ---- strings and the server ----

    def _get(self, key: str) -> bytes | None:
        value = self._find(key)
        return value if value is None else bytes(value)

    def _mget(self, *keys: str) -> list[bytes | None]:
        return [self._get(key) for key in keys]

    def _set(self, key: str, value: str, px: int | None = None) -> bool:
        self._values[key] = _encode(value)
        self._expiry.pop(key, None)
        if px is not None:
            self._expiry[key] = self._clock() + px / 1000
        return True

    def _incr(self, key: str) -> int:
        value = int(self._find(key) or b"0") + 1
        self._values[key] = _encode(value)
        return value

    def _pexpire(self, key: str, milliseconds: int) -> bool:
        if self._find(key) is None:
            return False
        self._expiry[key] = self._clock() + milliseconds / 1000
        return True

    def _time(self) -> tuple[int, int]:
        return divmod(round((EPOCH + self._clock()) * 1e6), 10**6)

    @property
    def run_id(self) -> str:
        return f"run{self._runs}"

    def _info(self, section: str) -> dict[str, Any]:
        return {"run_id": self.run_id} if section == "server" else {"evicted_keys": self._evicted}

    # ---- hashes ----

    def _hset(
        self, key: str, field: str | None = None, value: Any = None, *, mapping: Any = None
    ) -> int:
        fields = {**({field: value} if field is not None else {}), **(mapping or {})}
        found = self._make(key)
        added = sum(_encode(name) not in found for name in fields)
        found.update({_encode(name): _encode(value) for name, value in fields.items()})
        return added

    def _hget(self, key: str, field: str) -> bytes | None:
        value = (self._find(key) or {}).get(_encode(field))
        return value if value is None else bytes(value)

    def _hexists(self, key: str, field: str) -> bool:
        return _encode(field) in (self._find(key) or {})

    def _hgetall(self, key: str) -> dict[bytes, bytes]:
        return dict(self._find(key) or {})

    def _hscan(self, key: str, cursor: int, count: int) -> tuple[int, dict[bytes, bytes]]:
        return 0, self._hgetall(key)

    def _hdel(self, key: str, *fields: bytes | str) -> int:
        found = self._find(key) or {}
        removed = sum(found.pop(_encode(field), None) is not None for field in fields)
        if not found:
            self._values.pop(key, None)
        return removed

    # ---- sorted sets ----

    def _zadd(self, key: str, scores: dict[str, float], *, nx: bool = False) -> int:
        found = self._make(key)
        new = {_encode(name): score for name, score in scores.items()}
        added = len(new.keys() - found.keys())
        found.update({name: s for name, s in new.items() if not nx or name not in found})
        return added

    def _zrange(self, key: str, start: int, stop: int) -> list[bytes]:
        names = self._ordered(key)
        return names[start : stop + 1 if stop != -1 else None]

    def _zrevrange(self, key: str, start: int, stop: int) -> list[bytes]:
        return self._ordered(key)[::-1][start : stop + 1]

    def _zremrangebyrank(self, key: str, start: int, stop: int) -> int:
        names = self._ordered(key)
        end = stop + 1 if stop >= 0 else len(names) + stop + 1
        return self._remove(key, names[start : max(end, 0)])

    def _zremrangebyscore(self, key: str, low: float, high: float) -> int:
        found = self._find(key) or {}
        return self._remove(key, [name for name, score in found.items() if low <= score <= high])

    def _ordered(self, key: str) -> list[bytes]:
        found = self._find(key) or {}
        return sorted(found, key=lambda name: (found[name], name))

    def _remove(self, key: str, names: list[bytes]) -> int:
        found = self._find(key) or {}
        for name in names:
            del found[name]
        if not found:
            self._values.pop(key, None)
        return len(names)


def _encode(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@dataclass
class Link:
    """The access of one process to its store. What was sent before the process died arrives."""

    dice: random.Random
    mode: LinkMode = "ok"
    dead: bool = False

    def latency(self) -> float:
        return self.dice.random() * MAX_LATENCY_SECONDS

    def lag(self) -> float:
        return 0.2 + self.dice.random() * MAX_LAG_SECONDS


class SimulatedRedis:
    """A client of the fake server, in place of `redis.asyncio.Redis`."""

    def __init__(self, server: SimulatedRedisServer, link: Link) -> None:
        self._server = server
        self._link = link

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def pipeline(self, transaction: bool) -> "_Pipeline":
        return _Pipeline(self, transaction)

    async def aclose(self) -> None:
        pass

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        return (await self.send([(name, args, options)], atomic=True))[0]

    async def send(self, commands: list[_Command], *, atomic: bool) -> list[Any]:
        """Send commands and wait for their replies. Others run between those of a pipeline."""
        link = self._link
        if not commands:
            return []
        if link.dead or link.mode == "refuse":
            raise RedisConnectionError("connection refused")
        split = len(commands) if atomic else link.dice.randint(1, len(commands))
        replies = await self._deliver(commands[:split])
        if split < len(commands):
            replies += await self._deliver(commands[split:])
        return replies

    async def _deliver(self, commands: list[_Command]) -> list[Any]:
        loop, link, mode = asyncio.get_running_loop(), self._link, self._link.mode
        replies: asyncio.Future[list[Any]] = loop.create_future()

        def execute() -> None:
            if loop.time() < self._server.frozen_until:
                loop.call_at(self._server.frozen_until, execute)
                return
            result = [self._server.execute(command) for command in commands]
            if mode == "ok" and not replies.done():
                replies.set_result(result)

        loop.call_later(link.lag() if mode == "lag" else link.latency(), execute)
        return await replies


class _Pipeline:
    """Commands that are sent together."""

    def __init__(self, redis: SimulatedRedis, transaction: bool) -> None:
        self._redis = redis
        self._transaction = transaction
        self._commands: list[_Command] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self._commands.append((name, args, options))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    async def execute(self) -> list[Any]:
        commands, self._commands = self._commands, []
        return await self._redis.send(commands, atomic=self._transaction)
