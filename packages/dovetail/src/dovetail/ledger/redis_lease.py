"""Leases by which several servers know that every turn of the others is announced in Redis.

A server renews its lease while it can reach Redis and every turn that it serves is announced there.
If a turn cannot be announced, the server waits until its lease has expired before it emits the
first event. So a lookup that finds all leases valid knows all turns that clients have seen.

Lease ends are absolute times of the Redis server: a renewal that a frozen server executes late has
already expired. A lease that stays expired is removed and leaves a gap: the server may still be
running without access to Redis.
"""

import asyncio
import fcntl
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.storage.gap_file import IDENTITY_BYTES, GapFile
from dovetail.storage.redis_client import RedisClient

LEASE_SECONDS = 2.0
_RENEW_INTERVAL_SECONDS = 0.5
_CANCEL_INTERVAL_SECONDS = 0.1
_ABANDONED_SECONDS = 600.0  # an expired lease is removed after this time
_KEY_GROUP = "lease"
_MAX_SLOTS = 4096  # server processes per data folder


class ProcessSlot:
    """A number that this process has for itself in a data folder, and the gap file of the number.

    A restarted process takes over the number of the crashed one, and with it its gap file.
    """

    __slots__ = ("_lock", "gap_file", "name")

    def __init__(self, folder: Path) -> None:
        place = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(_MAX_SLOTS):
            lock = os.open(
                folder / f"redis-{number}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600
            )
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                continue
            self._lock = lock
            self.name = f"{socket.gethostname()}/{place}/{number}"
            self.gap_file = GapFile(folder / f"redis-{number}.gap")
            return
        raise OSError(f"more than {_MAX_SLOTS} processes use the data folder {folder}")

    def release(self) -> None:
        self.gap_file.close()
        os.close(self._lock)


class RedisLease:
    """The lease of this process. `can_renew`: whether all turns that it has served are announced.

    Without a data folder, the process has a random name, and a crash always leaves a gap.
    """

    __slots__ = (
        "_can_renew",
        "_client",
        "_clock_offset",
        "_gap_key",
        "_gap_ttl_ms",
        "_lease_end",
        "_members_key",
        "_name",
        "_run_ids",
        "_run_key",
        "_slot",
        "_started_at",
        "_task",
        "has_lost_turns",
        "is_acquired",
    )

    def __init__(
        self,
        client: RedisClient,
        *,
        gap_ttl_ms: int,
        folder: Path | None,
        can_renew: Callable[[], bool],
    ) -> None:
        self._client = client
        self._members_key = client.make_common_key(_KEY_GROUP, "members")
        self._gap_key = client.make_common_key(_KEY_GROUP, "gap")
        self._run_key = client.make_common_key(_KEY_GROUP, "run")
        self._gap_ttl_ms = gap_ttl_ms
        self._can_renew = can_renew
        self._slot = ProcessSlot(folder) if folder is not None else None
        self._name = self._slot.name if self._slot is not None else secrets.token_hex(8)
        self._clock_offset: float | None = None  # server time minus monotonic time, at most
        self._run_ids: frozenset[str] | None = None  # of the Redis server, or of all primaries
        # Whether a turn was served that is not announced and never will be.
        self.has_lost_turns = self.gap_file is not None and self.gap_file.read() != GapFile.NO_GAP
        self.is_acquired = False  # whether the other servers know of this process
        self._started_at = time.monotonic()
        self._lease_end = 0.0  # the latest end that was sent, in server time
        self._task: asyncio.Task[None] | None = None

    @property
    def gap_file(self) -> GapFile | None:
        return self._slot.gap_file if self._slot is not None else None

    async def ensure(self) -> None:
        """Acquire the lease on first use, and keep renewing it."""
        if self._task is None:
            self._task = asyncio.create_task(self._keep_renewing())
            await self._client.call(self._renew)

    async def wait_expired(self) -> None:
        """Wait until every lookup sees that the lease has expired.

        A lease that is renewed meanwhile does not matter: all turns are announced then. A process
        that has not reached Redis yet may have taken over the lease of a crashed one.
        """
        end = self._lease_end
        if self._clock_offset is None:
            await asyncio.sleep(self._started_at + LEASE_SECONDS - time.monotonic())
        while self._clock_offset is not None:
            left = end - (time.monotonic() + self._clock_offset)
            if left < 0:
                return
            await asyncio.sleep(left + 0.001)

    async def close(self) -> None:
        """Give the lease up, if nothing is missing in Redis."""
        if self._task is not None:
            while not self._task.done():  # a client library may swallow a cancellation
                self._task.cancel()
                await asyncio.wait([self._task], timeout=_CANCEL_INTERVAL_SECONDS)
            if self._can_renew() and not self.has_lost_turns:
                await self._client.call(
                    lambda: self._client.redis.hdel(self._members_key, self._name)
                )
        if self._slot is not None:
            self._slot.release()

    def add_check(self, pipe: Any) -> None:
        """Add the commands of `is_exhaustive` to a pipeline, before those of the lookup."""
        self._client.add_command(pipe, "time", **self._client.target_node(self._members_key))
        pipe.hgetall(self._members_key)
        pipe.get(self._gap_key)
        pipe.get(self._run_key)

    def is_exhaustive(self, replies: list[Any], info: dict[str, Any]) -> bool:
        """Return whether all servers announce their turns, and Redis has lost none of them.

        `info`: the section "server" of the node that executed the lookup, right before it.
        """
        now, members, gap, run = replies
        run_id = _run_id(info)
        return (
            gap is None
            and all(float(end) >= _to_seconds(now) for end in members.values())
            and run_id in _split_run_ids(run)
            and (self._run_ids is None or run_id in self._run_ids)
        )

    def estimate_server_time(self) -> float:
        """Estimate the time of the Redis server, which is the same clock for all frontends."""
        return time.time() if self._clock_offset is None else time.monotonic() + self._clock_offset

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_INTERVAL_SECONDS)
            await self._client.call(self._renew)

    async def _renew(self) -> bool:
        """Renew the lease, unless a turn is missing in Redis. Report gaps first."""
        await self._check_server()
        if not self._can_renew():
            return False
        if self.has_lost_turns:
            await self._report_gap()
            self.has_lost_turns = False
        if self._clock_offset is None:
            node = self._client.target_node(self._members_key)
            self._set_clock(await self._client.redis.time(**node))
        self._lease_end = time.monotonic() + (self._clock_offset or 0.0) + LEASE_SECONDS
        async with self._client.pipeline() as pipe:
            pipe.hset(self._members_key, self._name, repr(self._lease_end))
            pipe.hgetall(self._members_key)
            self._client.add_command(pipe, "time", **self._client.target_node(self._members_key))
            _, members, now = await pipe.execute()
        self._set_clock(now)
        self.is_acquired = True
        if self.gap_file is not None and self.gap_file.read() != GapFile.NO_GAP:
            self.gap_file.clear()  # every turn has been announced meanwhile
        await self._remove_abandoned(members, _to_seconds(now))
        return True

    async def _remove_abandoned(self, members: dict[bytes, bytes], now: float) -> None:
        for name, end in members.items():
            if float(end) < now - _ABANDONED_SECONDS:
                await self._report_gap()
                await self._client.redis.hdel(self._members_key, name)

    async def _check_server(self) -> None:
        """Report a gap if the server may have lost data: it was restarted, or evicts keys.

        In a cluster this applies to every primary: a replica that replaced one may lack the last
        writes. A primary that was added lost nothing: its slots are moved there with their keys.
        """
        primaries = self._client.target_primaries()
        async with self._client.redis.pipeline(transaction=False) as pipe:
            pipe.get(self._run_key)
            pipe.hexists(self._members_key, self._name)
            for primary in primaries:
                self._client.add_command(pipe, "info", "server", **primary)
                self._client.add_command(pipe, "info", "stats", **primary)
            known, has_lease, *infos = await pipe.execute()
        run_ids = frozenset(map(_run_id, infos[::2]))
        stored = _split_run_ids(known)
        if (
            not run_ids.issuperset(stored | (self._run_ids or frozenset()))
            or not self._is_bound_to(run_ids)
            or (has_lease and self._has_lost_gap_file())
            or any(map(_has_evicted, infos[1::2]))
        ):
            await self._report_gap()
        if stored != run_ids:
            await self._client.redis.set(self._run_key, _join_run_ids(run_ids))
        if self._run_ids != run_ids and self.gap_file is not None:
            self.gap_file.bind(_digest(run_ids), is_new=True, now=self.gap_file.read())
        self._run_ids = run_ids

    def _is_bound_to(self, run_ids: frozenset[str]) -> bool:
        """Return whether the last process of this slot used the same run of the server, or none.

        A process knows by itself that a primary was added since it was bound.
        """
        return (
            self.gap_file is None
            or self._run_ids is not None
            or self.gap_file.identity in (_digest(run_ids), bytes(IDENTITY_BYTES))
        )

    def _has_lost_gap_file(self) -> bool:
        """Return whether the slot has a lease, but not the file of the process that acquired it."""
        return self.gap_file is not None and self.gap_file.identity == bytes(IDENTITY_BYTES)

    async def _report_gap(self) -> None:
        """Make lookups of all servers inexhaustive until every present entry has expired."""
        await self._client.redis.set(self._gap_key, repr(time.time()), px=self._gap_ttl_ms)

    def _set_clock(self, server_time: tuple[int, int]) -> None:
        self._clock_offset = _to_seconds(server_time) - time.monotonic()


def _to_seconds(server_time: tuple[int, int]) -> float:
    seconds, microseconds = server_time
    return seconds + microseconds / 1e6


def _digest(run_ids: frozenset[str]) -> bytes:
    return hashlib.sha256(_join_run_ids(run_ids).encode()).digest()[:IDENTITY_BYTES]


def _join_run_ids(run_ids: frozenset[str]) -> str:
    return "\n".join(sorted(run_ids))


def _split_run_ids(stored: bytes | None) -> frozenset[str]:
    return frozenset(() if stored is None else stored.decode().split("\n"))


def _has_evicted(stats: dict[str, Any]) -> bool:
    return int(stats.get("evicted_keys", 0)) > 0


def _run_id(info: dict[str, Any]) -> str:
    return str(info.get("run_id", ""))
