"""Run each local engine in one process that all workers share.

If each worker loaded the weights, they would be in memory several times, and the workers would not
share a prefix cache.
"""

import asyncio
import logging
import secrets
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.engines.registry import runs_locally
from dovetail.server.engines import HOSTED_ENGINE
from dovetail.server.process import (
    RESTART_DELAYS_SECONDS,
    EngineHostSpec,
    ManagedProcess,
    describe_exit_status,
)
from dovetail.settings.config import Config

ENGINE_HOST_MODULE = "dovetail.server.engine_host"
STOP_TIMEOUT_SECONDS = 15.0  # after which the process is killed

_log = logging.getLogger(__name__)


class EngineSupervisor:
    """Supervise the processes of local engines.

    config: Configuration of the server; after `start`, of its workers, which use the processes.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        self.config = config
        self._folder = folder
        self._hosts: list[_EngineHost] = []

    async def start(self) -> bool:
        """Start a process for each model with a local engine. Returns False if one failed."""
        each = [replace(self.config, models=(), **table) for table in self.config.models]
        models = each or [self.config]
        self._hosts = [
            _EngineHost(one, at, self._folder / f"engine-{at}")
            for at, one in enumerate(models)
            if runs_locally(one.engine, one.has_remote_url)
        ]
        for host in self._hosts:  # one after the other, as they may download the same files
            if not await host.start():
                return False
        tables = [dict(table) for table in self.config.models]
        for host in self._hosts:
            if tables:
                tables[host.index] |= host.settings
            else:
                self.config = replace(self.config, **host.settings)
        if tables:
            self.config = replace(self.config, models=tuple(tables))
        return True

    def cancel_start(self) -> None:
        """Stop the processes that are not ready yet."""
        for host in self._hosts:
            host.cancel_start()

    async def stop(self) -> None:
        await asyncio.gather(*(host.stop() for host in self._hosts))


class _EngineHost:
    """The process of one engine. It is restarted at the same address when it crashes."""

    def __init__(self, config: Config, index: int, socket: Path) -> None:
        self.index = index
        self._spec = EngineHostSpec(config, socket, secrets.token_urlsafe(32))
        self._process = ManagedProcess(ENGINE_HOST_MODULE)
        self._restart_task: asyncio.Task[None] | None = None
        self.settings: Mapping[str, Any] = {}

    async def start(self) -> bool:
        facts = await self._process.start(self._spec)
        if facts is None:
            return False
        options = {
            "address": f"unix://{self._spec.socket}",
            "key": self._spec.key,
            "traits": facts["traits"],
        }
        self.settings = {
            "engine": HOSTED_ENGINE,
            "engine_option": tuple(f"{name}={value}" for name, value in options.items()),
            "replicas": 1,
        }
        self._restart_task = asyncio.create_task(self._keep_running())
        return True

    def cancel_start(self) -> None:
        if not self._process.ready:
            self._process.send(signal.SIGTERM)

    async def stop(self) -> None:
        if self._restart_task is not None:
            self._restart_task.cancel()
        self._process.send(signal.SIGTERM)
        if self._process.alive:
            try:
                await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_SECONDS)
            except TimeoutError:
                self._process.send(signal.SIGKILL)

    async def _keep_running(self) -> None:
        failures = 0
        while True:
            status = await self._process.wait()
            delay = RESTART_DELAYS_SECONDS[min(failures, len(RESTART_DELAYS_SECONDS) - 1)]
            fields = {
                "model": self.index,
                "exit_status": describe_exit_status(status),
                "restart_delay_seconds": delay,
            }
            _log.error("engine_host_crashed", extra={"fields": fields})
            await asyncio.sleep(delay)
            self._process = ManagedProcess(ENGINE_HOST_MODULE)
            failures = failures + 1 if await self._process.start(self._spec) is None else 0
