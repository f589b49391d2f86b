"""Supervise worker processes: start them, restart them after crashes, and stop them gracefully.

The supervisor does not serve requests. Each worker listens on the port, and the operating system
distributes connections over the workers (SO_REUSEPORT). A worker that has crashed or is not ready
yet gets no connections.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from dovetail.access.auth import ApiKeys
from dovetail.access.shared_limits import create_shared_limit_store
from dovetail.net.tls import TlsCertificate
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
from dovetail.settings.config import Config


@asynccontextmanager
async def reload_on_change(
    keys: ApiKeys, certificate: TlsCertificate | None
) -> AsyncIterator[None]:
    """Reload the keys and the certificate on SIGHUP and on changes while the block runs."""

    def reload() -> None:
        keys.reload()
        if certificate is not None:
            certificate.reload()

    loop = asyncio.get_running_loop()
    handles_sighup = not has_terminal()
    if handles_sighup:
        loop.add_signal_handler(signal.SIGHUP, reload)
    watch_task = None if certificate is None else asyncio.create_task(certificate.watch())
    try:
        yield
    finally:
        if handles_sighup:
            loop.remove_signal_handler(signal.SIGHUP)
        if watch_task is not None:
            watch_task.cancel()
            with suppress(asyncio.CancelledError):
                await watch_task


def has_terminal() -> bool:
    """Return whether a terminal is attached, where SIGHUP means that the terminal was closed."""
    try:
        return sys.stdin is not None and os.isatty(sys.stdin.fileno())
    except (OSError, ValueError):
        return False


WORKER_MODULE = "dovetail.cli.worker"
CRASH_LOOP_SECONDS = 60.0  # a worker that crashes sooner is restarted with growing delays
MAX_FAILED_STARTS = 5  # in a row, while no other worker is ready
STOP_TIMEOUT_SECONDS = 30.0  # in addition to the drain timeout; then a worker is killed

_log = logging.getLogger(__name__)


class SupervisorError(Exception):
    """The workers do not start or keep crashing. They have logged the reason themselves."""


class WorkerSupervisor:
    """Supervise the worker processes of one server."""

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
        """Run the workers until stopped. `on_ready` is called with the first worker's report.

        Raises `SupervisorError` if the workers do not start or keep crashing.
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
        """Start the engines, then the first worker, then the others.

        The first worker starts alone because it may download files. Returns its report, or None if
        the start failed or was interrupted.
        """
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

    def _start_failed(self, problem: str) -> dict[str, Any] | None:
        """Record the error, unless the start was interrupted by a stop."""
        if not self._stopping.is_set():
            self._error = SupervisorError(f"{problem}; see the messages above")
        return None

    async def _spawn(self, number: int) -> dict[str, Any] | None:
        if self._stopping.is_set():
            return None
        worker = self._workers[number] = ManagedProcess(WORKER_MODULE)
        spec = WorkerSpec(number, self._config, self._port, self._folder, self._restarts[number])
        return await worker.start(spec)

    async def _keep_running(self, number: int) -> None:
        """Restart a worker when it crashes, with growing delays if it crashes repeatedly."""
        loop, crashes = asyncio.get_running_loop(), 0
        started_at = loop.time()
        while True:
            status = await self._workers[number].wait()
            if self._stopping.is_set():
                return
            crashes = crashes + 1 if loop.time() - started_at < CRASH_LOOP_SECONDS else 0
            delay = RESTART_DELAYS_SECONDS[min(crashes, len(RESTART_DELAYS_SECONDS) - 1)]
            fields = {
                "worker": number,
                "exit_status": describe_exit_status(status),
                "restart_delay_seconds": delay,
            }
            _log.error("worker_crashed", extra={"fields": fields})
            if crashes >= MAX_FAILED_STARTS and not any(
                one.ready and one.alive for one in self._workers
            ):
                self._error = SupervisorError("the workers crash as soon as they are started")
                self._stop()
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
            started_at = loop.time()
            self._restarts[number] += 1
            if await self._spawn(number) is not None:
                _log.warning("worker_restarted", extra={"fields": {"worker": number}})

    def _install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, number)
        if not has_terminal():
            loop.add_signal_handler(signal.SIGHUP, self._forward_reload)

    def _forward_reload(self) -> None:
        """Have the workers reload their keys and certificates."""
        notify("RELOADING=1")
        for worker in self._workers:
            if worker.ready:
                worker.send(signal.SIGHUP)
        notify("READY=1")

    def _on_stop_signal(self, number: signal.Signals) -> None:
        """Drain the workers on the first signal, abort on the second, kill them on the third."""
        self.stop_signal = self.stop_signal or number
        self._signal_count += 1
        self._stop(signal.SIGTERM if self._signal_count < 3 else signal.SIGKILL)

    def _stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            notify("STOPPING=1")
            self._engines.cancel_start()
        for worker in self._workers:
            worker.send(number)

    async def _shutdown(self) -> None:
        """Wait for the workers to exit, then stop the engines."""
        self._stopping.set()
        alive = [worker for worker in self._workers if worker.alive]
        if self._signal_count == 0:
            self._stop()
        timeout = self._config.drain_timeout + STOP_TIMEOUT_SECONDS
        exits = [asyncio.create_task(worker.wait()) for worker in alive]
        if exits:
            _, pending = await asyncio.wait(exits, timeout=timeout)
            for worker in alive if pending else ():
                worker.send(signal.SIGKILL)
            await asyncio.gather(*exits)
        await self._engines.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
