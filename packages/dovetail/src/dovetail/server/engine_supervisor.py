"""Engines that run here, each in one process for all workers.

A worker that loaded the weights for itself would need them once more in memory, and would know
nothing of what the others have cached.
"""

import asyncio
import logging
import secrets
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.engines.registry import REMOTE_ENGINES
from dovetail.server.order import HostOrder
from dovetail.server.process import PAUSES, Member, ending
from dovetail.settings.config import Config

HOST = "dovetail.server.engine_host"
HOSTED = "dovetail.engines.hosted_init:create"
GRACE = 15.0  # seconds to end

_log = logging.getLogger(__name__)


class Hosts:
    """The processes of a server's own engines. `config` is what workers are told, once they run."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config = config
        self._folder = folder
        self._hosts: list[_Host] = []

    async def start(self) -> bool:
        """Starts one for each model that is not served from elsewhere. Whether they all run."""
        each = [replace(self.config, models=(), **table) for table in self.config.models]
        models = each or [self.config]
        self._hosts = [
            _Host(one, at, self._folder / f"engine-{at}")
            for at, one in enumerate(models)
            if one.engine not in REMOTE_ENGINES
        ]
        for host in self._hosts:  # one after the other: they may fetch the same files
            if not await host.start():
                return False
        tables = [dict(table) for table in self.config.models]
        for host in self._hosts:
            if tables:
                tables[host.at] |= host.settings
            else:
                self.config = replace(self.config, **host.settings)
        if tables:
            self.config = replace(self.config, models=tuple(tables))
        return True

    def abandon(self) -> None:
        """Those that are not ready by now are not needed any more."""
        for host in self._hosts:
            host.abandon()

    async def stop(self) -> None:
        await asyncio.gather(*(host.stop() for host in self._hosts))


class _Host:
    """One engine's process. It is started again when it falls, at the same address."""

    def __init__(self, config: Config, at: int, socket: Path) -> None:
        self.at = at
        self._order = HostOrder(config, socket, secrets.token_urlsafe(32))
        self._member = Member(HOST)
        self._keeping: asyncio.Task[None] | None = None
        self.settings: Mapping[str, Any] = {}

    async def start(self) -> bool:
        told = await self._member.start(self._order)
        if told is None:
            return False
        options = {
            "address": f"unix://{self._order.socket}",
            "key": self._order.key,
            "traits": told["traits"],
        }
        self.settings = {
            "engine": HOSTED,
            "engine_option": tuple(f"{name}={value}" for name, value in options.items()),
            "replicas": 1,
        }
        self._keeping = asyncio.create_task(self._keep())
        return True

    def abandon(self) -> None:
        if not self._member.ready:
            self._member.send(signal.SIGTERM)

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        self._member.send(signal.SIGTERM)
        if self._member.alive:
            try:
                await asyncio.wait_for(self._member.ended(), GRACE)
            except TimeoutError:
                self._member.send(signal.SIGKILL)

    async def _keep(self) -> None:
        fell = 0
        while True:
            status = await self._member.ended()
            pause = PAUSES[min(fell, len(PAUSES) - 1)]
            fields = {"model": self.at, "ended": ending(status), "again_in": pause}
            _log.error("engine_host_fell", extra={"fields": fields})
            await asyncio.sleep(pause)
            self._member = Member(HOST)
            fell = fell + 1 if await self._member.start(self._order) is None else 0
