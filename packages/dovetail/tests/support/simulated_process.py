"""A server process of a crash history."""

import asyncio
from collections.abc import Coroutine

from history_profiles import Profile
from simulated_redis import Link
from simulated_stores import Storage, kill_store, loop_time
from simulated_turns import LedgerServer, PipelineServer, TurnServer

from dovetail.ledger.ledger import Ledger
from dovetail.ledger.sqlite_store import SqliteLedgerStore


class Process:
    """A server process: its memory is lost in a crash."""

    def __init__(self, storage: Storage, place: str, link: Link, profile: Profile) -> None:
        self._storage = storage
        self.link = link
        self.place = place
        self.store = storage.open(link, place)
        self.ledger = Ledger(
            self.store, shared=True, cache_bytes=profile.cache_bytes[0], clock=loop_time
        )
        self.ledger._backlog_bytes = 1 << 20  # not so small that a slow store stops everything
        self.server: TurnServer = (PipelineServer if profile.renders else LedgerServer)(self.ledger)
        # Not a set, whose order differs between runs.
        self.turns: dict[asyncio.Task[None], None] = {}

    @property
    def has_reached_store(self) -> bool:
        return isinstance(self.store, SqliteLedgerStore) or self.store._lease.is_acquired

    @property
    def knows_server(self) -> bool:
        """Whether the process has noticed the last restart of Redis."""
        if isinstance(self.store, SqliteLedgerStore):
            return True
        return self.store._lease._run_ids == frozenset([self._storage.server.run_id])

    def add_turn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run a turn, or a part of one, until the process crashes."""
        task = asyncio.create_task(work)
        self.turns[task] = None
        task.add_done_callback(lambda task: self.turns.pop(task, None))
        return task

    def kill(self) -> None:
        """End at once: what has not been sent to the store never will be."""
        self.link.dead = True
        for task in (*self.turns, self.ledger._backlog._task):
            if task is not None:
                task.cancel()
        kill_store(self.store)
