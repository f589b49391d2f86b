"""One process of the server's own."""

import asyncio
import os
import pickle
import signal
import sys
from contextlib import suppress
from typing import Any

import msgspec

from dovetail.server.notify import NOTIFY_SOCKET_VARIABLE

MAX_LINE_BYTES = 1 << 20  # bytes
#: Seconds before one that fell is started again, by how often it fell; the last repeats.
RESTART_DELAYS_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)


class ManagedProcess:
    """A process: started once, asked for its end. `ready` from its first word on."""

    __slots__ = ("_pending_signal", "_module", "_process", "ready")

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: asyncio.subprocess.Process | None = None
        self._pending_signal: signal.Signals | None = None  # was sent before there was a process
        self.ready = False

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, spec: object) -> dict[str, Any] | None:
        """Gives it its order. What it tells once it is ready; None if it ends before."""
        # What manages the parent hears of the server from the parent alone.
        environment = {k: v for k, v in os.environ.items() if k != NOTIFY_SOCKET_VARIABLE}
        self._process = process = await asyncio.create_subprocess_exec(
            # -P: what lies in the folder that the server was started in is not imported.
            *(sys.executable, "-P", "-m", self._module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            limit=MAX_LINE_BYTES,
            start_new_session=True,  # Ctrl-C is for the parent to pass on
        )
        if self._pending_signal is not None:
            self.send(self._pending_signal)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(pickle.dumps(spec))
        with suppress(ConnectionError):
            await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            await process.wait()
            return None
        self.ready = True
        return msgspec.json.decode(line, type=dict[str, Any])

    async def wait(self) -> int:
        """Its exit status, when it has one."""
        assert self._process is not None
        return await self._process.wait()

    def send(self, number: signal.Signals) -> None:
        if self._process is None:
            self._pending_signal = number
        elif self.alive:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def describe_exit_status(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"status {status}"
    with suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"
