"""The server under the application: uvicorn on uvloop, with bounds on what comes before a body.

uvicorn leaves the size of headers and the time they take to its parser, and the fast one bounds
neither: a client that never ends its headers would hold memory and a connection for good.
"""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dovetail.engines.serving.direct import DIRECT, Direct

MAX_HEADER_BYTES = 64 << 10
HEADER_TIMEOUT = 20.0  # seconds from the connection, or a request's first byte, to its headers' end
IDLE_TIMEOUT = 120  # seconds that an unused connection stays open: agents pause between turns
DRAIN_TIMEOUT = 30  # seconds that streams may go on when the server is told to stop


class BoundedHttp(HttpToolsProtocol):
    """HTTP/1.1 whose headers are bounded in size and time."""

    _heading = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._time_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._heading:
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._heading = True
        self._head_bytes = 0
        if self._head_timer is None:
            self._time_headers()

    def on_headers_complete(self) -> None:
        self._heading = False
        self._stop_timer()
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:
            self.scope["extensions"] = {DIRECT: Direct(self.cycle)}  # type: ignore[dict-item]

    def _unsupported_upgrade_warning(self) -> None:
        """The application answers such a request itself: no reason to warn."""

    def _time_headers(self) -> None:
        self._head_timer = self.loop.call_later(HEADER_TIMEOUT, self._too_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        self.transport.write(
            b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        )
        self.transport.close()


def server(
    app: Any,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
) -> uvicorn.Server:
    """A server for the application, not running yet."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=BoundedHttp,
        loop="auto",  # uvloop where it is installed
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        backlog=4096,
        timeout_keep_alive=IDLE_TIMEOUT,
        timeout_graceful_shutdown=DRAIN_TIMEOUT,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )
    return uvicorn.Server(config)


async def serve(serving: uvicorn.Server, places: list[socket.socket]) -> None:
    """Serves until told to stop. uvicorn would end the process where the start fails.

    Whether it did is told by `started`.
    """
    with suppress(SystemExit):
        await serving.serve(places)


async def until_started(serving: uvicorn.Server, task: "asyncio.Task[None]") -> bool:
    """Waits for a server that is being started; False if its task has ended before."""
    while not serving.started and not task.done():
        await asyncio.wait({task}, timeout=0.05)
    return serving.started
