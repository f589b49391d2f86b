"""The parent of several workers: starts them, keeps them, and ends them in good order.

It serves nothing itself. Each worker listens on the port for itself, and the system spreads
connections over them (SO_REUSEPORT): one that is dead or not ready yet gets none.
"""

import asyncio
import logging
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dovetail.access.shared_limits import create_shared_limit_store
from dovetail.server.engine_supervisor import Hosts
from dovetail.server.folder import new_folder
from dovetail.server.notify import notify
from dovetail.server.order import BOOK, Order
from dovetail.server.process import PAUSES, Member, ending
from dovetail.server.reload import in_terminal
from dovetail.settings.config import Config

WORKER = "dovetail.cli.worker"
SOON = 60.0  # seconds after its start: who falls then is started again ever more slowly
GIVE_UP = 5  # starts in a row that came to nothing, while nobody else serves
GRACE = 30.0  # seconds beyond the time to drain, for one that does not end

_log = logging.getLogger(__name__)


class CrewError(Exception):
    """The workers cannot be kept running. What is wrong they have told themselves."""


class Crew:
    """The processes of one server."""

    def __init__(self, config: Config, port: int) -> None:
        self._config = config
        self._port = port
        self._folder = new_folder()
        self._hosts = Hosts(config, self._folder)
        self._members: list[Member] = [Member(WORKER) for _ in range(config.workers)]
        self._restarts = [0] * config.workers
        self._stopping = asyncio.Event()
        self._fault: CrewError | None = None
        self.stopped_by: signal.Signals | None = None
        self._signals = 0

    async def run(self, ready: Callable[[dict[str, Any]], None]) -> None:
        """Serves until told to stop. `ready` gets what the first worker tells of itself.

        Raises `CrewError` where the workers do not start, or do not stay.
        """
        self._heed()
        try:
            create_shared_limit_store(self._folder / BOOK, self._config.workers)
            facts = await self._start()
            if facts is not None:
                ready(facts)
                notify("READY=1")
                await asyncio.gather(*map(self._keep, range(len(self._members))))
        finally:
            await self._end()
        if self._fault is not None:
            raise self._fault

    async def _start(self) -> dict[str, Any] | None:
        """The first worker alone: it fetches what is missing. None where it is told to stop."""
        if not await self._hosts.start():
            return self._gone("an engine could not be started")
        self._config = self._hosts.config
        facts = await self._spawn(0)
        if facts is None:
            return self._gone("the first worker could not be started")
        others = await asyncio.gather(*map(self._spawn, range(1, len(self._members))))
        if None in others:
            return self._gone("a worker could not be started")
        return facts

    def _gone(self, what: str) -> dict[str, Any] | None:
        """Nothing to tell. It is a fault, unless it was asked for."""
        if not self._stopping.is_set():
            self._fault = CrewError(f"{what}; what went wrong is told above")
        return None

    async def _spawn(self, number: int) -> dict[str, Any] | None:
        if self._stopping.is_set():
            return None
        member = self._members[number] = Member(WORKER)
        order = Order(number, self._config, self._port, self._folder, self._restarts[number])
        return await member.start(order)

    async def _keep(self, number: int) -> None:
        """Starts a worker again whenever it falls, ever more rarely if it falls soon."""
        loop, fell = asyncio.get_running_loop(), 0
        since = loop.time()
        while True:
            status = await self._members[number].ended()
            if self._stopping.is_set():
                return
            fell = fell + 1 if loop.time() - since < SOON else 0
            pause = PAUSES[min(fell, len(PAUSES) - 1)]
            fields = {"worker": number, "ended": ending(status), "again_in": pause}
            _log.error("worker_fell", extra={"fields": fields})
            if fell >= GIVE_UP and not any(one.ready and one.alive for one in self._members):
                self._fault = CrewError("the workers fall as soon as they are started")
                self._stop()
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            since = loop.time()
            self._restarts[number] += 1
            if await self._spawn(number) is not None:
                _log.warning("worker_started", extra={"fields": {"worker": number}})

    def _heed(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop, number)
        if not in_terminal():
            loop.add_signal_handler(signal.SIGHUP, self._pass_on)

    def _pass_on(self) -> None:
        """Workers read their keys and certificates again."""
        notify("RELOADING=1")
        for member in self._members:
            if member.ready:
                member.send(signal.SIGHUP)
        notify("READY=1")

    def _told_to_stop(self, number: signal.Signals) -> None:
        """The first signal has the workers drain, the second break off, the third ends them."""
        self.stopped_by = self.stopped_by or number
        self._signals += 1
        self._stop(signal.SIGTERM if self._signals < 3 else signal.SIGKILL)

    def _stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            notify("STOPPING=1")
            self._hosts.abandon()
        for member in self._members:
            member.send(number)

    async def _end(self) -> None:
        """Waits for the workers, and only then ends what they need."""
        self._stopping.set()
        alive = [member for member in self._members if member.alive]
        if self._signals == 0:
            self._stop()
        patience = self._config.drain_timeout + GRACE
        waiting = [asyncio.create_task(member.ended()) for member in alive]
        if waiting:
            _, left = await asyncio.wait(waiting, timeout=patience)
            for member in alive if left else ():
                member.send(signal.SIGKILL)
            await asyncio.gather(*waiting)
        await self._hosts.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
