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
from dovetail.server.engine_supervisor import EngineSupervisor
from dovetail.server.process import (
    LIMITS_FILE,
    RESTART_DELAYS_SECONDS,
    ManagedProcess,
    WorkerSpec,
    create_runtime_dir,
    describe_exit_status,
    notify,
)
from dovetail.server.reload import has_terminal
from dovetail.settings.config import Config

WORKER_MODULE = "dovetail.cli.worker"
CRASH_LOOP_SECONDS = (
    60.0  # seconds after its start: who falls then is started again ever more slowly
)
MAX_FAILED_STARTS = 5  # starts in a row that came to nothing, while nobody else serves
STOP_TIMEOUT_SECONDS = 30.0  # seconds beyond the time to drain, for one that does not end

_log = logging.getLogger(__name__)


class SupervisorError(Exception):
    """The workers cannot be kept running. What is wrong they have told themselves."""


class WorkerSupervisor:
    """The processes of one server."""

    def __init__(self, config: Config, port: int) -> None:
        self._config = config
        self._port = port
        self._folder = create_runtime_dir()
        self._engines = EngineSupervisor(config, self._folder)
        self._workers: list[ManagedProcess] = [
            ManagedProcess(WORKER_MODULE) for _ in range(config.workers)
        ]
        self._restarts = [0] * config.workers
        self._stopping = asyncio.Event()
        self._error: SupervisorError | None = None
        self.stop_signal: signal.Signals | None = None
        self._signal_count = 0

    async def run(self, on_ready: Callable[[dict[str, Any]], None]) -> None:
        """Serves until told to stop. `ready` gets what the first worker tells of itself.

        Raises `CrewError` where the workers do not start, or do not stay.
        """
        self._install_signal_handlers()
        try:
            create_shared_limit_store(self._folder / LIMITS_FILE, self._config.workers)
            facts = await self._start()
            if facts is not None:
                on_ready(facts)
                notify("READY=1")
                await asyncio.gather(*map(self._keep_running, range(len(self._workers))))
        finally:
            await self._shutdown()
        if self._error is not None:
            raise self._error

    async def _start(self) -> dict[str, Any] | None:
        """The first worker alone: it fetches what is missing. None where it is told to stop."""
        if not await self._engines.start():
            return self._start_failed("an engine could not be started")
        self._config = self._engines.config
        facts = await self._spawn(0)
        if facts is None:
            return self._start_failed("the first worker could not be started")
        others = await asyncio.gather(*map(self._spawn, range(1, len(self._workers))))
        if None in others:
            return self._start_failed("a worker could not be started")
        return facts

    def _start_failed(self, what: str) -> dict[str, Any] | None:
        """Nothing to tell. It is a fault, unless it was asked for."""
        if not self._stopping.is_set():
            self._error = SupervisorError(f"{what}; what went wrong is told above")
        return None

    async def _spawn(self, number: int) -> dict[str, Any] | None:
        if self._stopping.is_set():
            return None
        member = self._workers[number] = ManagedProcess(WORKER_MODULE)
        order = WorkerSpec(number, self._config, self._port, self._folder, self._restarts[number])
        return await member.start(order)

    async def _keep_running(self, number: int) -> None:
        """Starts a worker again whenever it falls, ever more rarely if it falls soon."""
        loop, fell = asyncio.get_running_loop(), 0
        since = loop.time()
        while True:
            status = await self._workers[number].wait()
            if self._stopping.is_set():
                return
            fell = fell + 1 if loop.time() - since < CRASH_LOOP_SECONDS else 0
            pause = RESTART_DELAYS_SECONDS[min(fell, len(RESTART_DELAYS_SECONDS) - 1)]
            fields = {"worker": number, "ended": describe_exit_status(status), "again_in": pause}
            _log.error("worker_fell", extra={"fields": fields})
            if fell >= MAX_FAILED_STARTS and not any(
                one.ready and one.alive for one in self._workers
            ):
                self._error = SupervisorError("the workers fall as soon as they are started")
                self._stop()
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            since = loop.time()
            self._restarts[number] += 1
            if await self._spawn(number) is not None:
                _log.warning("worker_started", extra={"fields": {"worker": number}})

    def _install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, number)
        if not has_terminal():
            loop.add_signal_handler(signal.SIGHUP, self._forward_reload)

    def _forward_reload(self) -> None:
        """Workers read their keys and certificates again."""
        notify("RELOADING=1")
        for member in self._workers:
            if member.ready:
                member.send(signal.SIGHUP)
        notify("READY=1")

    def _on_stop_signal(self, number: signal.Signals) -> None:
        """The first signal has the workers drain, the second break off, the third ends them."""
        self.stop_signal = self.stop_signal or number
        self._signal_count += 1
        self._stop(signal.SIGTERM if self._signal_count < 3 else signal.SIGKILL)

    def _stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            notify("STOPPING=1")
            self._engines.cancel_start()
        for member in self._workers:
            member.send(number)

    async def _shutdown(self) -> None:
        """Waits for the workers, and only then ends what they need."""
        self._stopping.set()
        alive = [member for member in self._workers if member.alive]
        if self._signal_count == 0:
            self._stop()
        patience = self._config.drain_timeout + STOP_TIMEOUT_SECONDS
        waiting = [asyncio.create_task(member.wait()) for member in alive]
        if waiting:
            _, left = await asyncio.wait(waiting, timeout=patience)
            for member in alive if left else ():
                member.send(signal.SIGKILL)
            await asyncio.gather(*waiting)
        await self._engines.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
