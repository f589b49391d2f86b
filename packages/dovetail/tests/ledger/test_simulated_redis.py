"""The fake Redis of the crash histories replies like a real server."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis_server import RedisServer
from simulated_redis import Link, SimulatedRedis, SimulatedRedisServer

KEYS = ("a", "b")
NAMES = ("x", "y", "z")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    redis = RedisServer()
    redis.start()
    yield redis
    redis.remove()


def _hash_command(dice: random.Random) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    key, name = f"hash:{dice.choice(KEYS)}", dice.choice(NAMES)
    return dice.choice(
        (
            ("hset", (key, name, f"{dice.random()}"), {}),
            ("hset", (key,), {"mapping": {name: b"\0", "w": "1"}}),
            ("hget", (key, name), {}),
            ("hgetall", (key,), {}),
            ("hexists", (key, name), {}),
            ("hscan", (key, 0), {"count": 64}),
            ("hdel", (key, name), {}),
            ("pexpire", (key, dice.choice((0, 100_000))), {}),
        )
    )


def _sorted_set_command(dice: random.Random) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    key, name, score = f"set:{dice.choice(KEYS)}", dice.choice(NAMES), dice.randint(0, 9)
    return dice.choice(
        (
            ("zadd", (key, {name: score}), {"nx": dice.random() < 0.5}),
            ("zrevrange", (key, 0, dice.randint(0, 2)), {}),
            ("zrange", (key, 0, -1), {}),
            ("zremrangebyrank", (key, 0, -dice.randint(1, 4)), {}),
            ("zremrangebyscore", (key, 0, score), {}),
            ("pexpire", (key, dice.choice((0, 100_000))), {}),
        )
    )


def _string_command(dice: random.Random) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    key = f"string:{dice.choice(KEYS)}"
    return dice.choice(
        (
            ("set", (key, f"{dice.random()}"), {"px": dice.choice((None, 100_000))}),
            ("get", (key,), {}),
            ("mget", ("string:a", "string:b"), {}),
            ("incr", ("number",), {}),
        )
    )


def test_replies_are_those_of_a_real_server(server: RedisServer) -> None:
    async def main() -> None:
        dice = random.Random(1)
        real: Any = Redis.from_url(server.url)
        fake = SimulatedRedis(SimulatedRedisServer(lambda: 0.0), Link(random.Random(1)))
        for _ in range(2000):
            make = dice.choice((_hash_command, _sorted_set_command, _string_command))
            name, args, options = make(dice)
            expected = await getattr(real, name)(*args, **options)
            assert await getattr(fake, name)(*args, **options) == expected, (name, args, options)
        await real.aclose()

    asyncio.run(main())
