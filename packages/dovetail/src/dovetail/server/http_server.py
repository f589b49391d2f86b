"""The server under the application: uvicorn on uvloop, with connections that are bounded."""

import asyncio
import logging
import math
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from types import FrameType
from typing import Any

import uvicorn

from dovetail.http.drain import DrainController
from dovetail.http.websocket.protocol import PING_INTERVAL_SECONDS, PING_TIMEOUT_SECONDS, BoundedWebSocketProtocol
from dovetail.net.client_address import ClientAddressResolver
from dovetail.net.http_protocol import BoundedHttpProtocol, max_connections, raise_file_limit
from dovetail.net.tls import TlsCertificate
from dovetail.server.handshake import Handshakes
from dovetail.telemetry.log_throttle import LogThrottle
from dovetail.telemetry.metrics import Metrics

IDLE_TIMEOUT = 120  # seconds that an unused connection stays open: agents pause between turns
LAST_WORDS = 2.0  # seconds for clients to read the end of an answer, or that it was broken off

_log = logging.getLogger(__name__)


class DrainingServer(uvicorn.Server):
    """A server that finishes what it has begun.

    The first signal lets running answers go on for a while, the second breaks them off, the third
    waits for nothing at all. What sets `should_exit` itself has the server end at once.
    """

    def __init__(
        self, config: uvicorn.Config, draining: DrainController, handshakes: Handshakes | None = None
    ) -> None:
        super().__init__(config)
        self._draining = draining
        self._handshakes = handshakes
        self._signals = 0
        self._broken_off = False
        self._until = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._captured_signals.append(sig)
        self._signals += 1
        self.force_exit = self._signals > 2
        # What is cut off in the middle then tells so, at length. It is what was asked for.
        logging.getLogger("uvicorn.error").disabled |= self.force_exit

    async def on_tick(self, counter: int) -> bool:
        if await super().on_tick(counter):
            return True
        return self.force_exit or (self._signals > 0 and self._is_drained())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Places to listen are given; where HTTPS is served, connections are not uvicorn's yet."""
        handshakes = self._handshakes
        if handshakes is None:
            await super().startup(sockets)
            return
        await super().startup([])
        config, state = self.config, self.server_state
        make: Callable[..., asyncio.Protocol] = config.http_protocol_class
        http = partial(make, config=config, server_state=state, app_state=self.lifespan.state)
        for place in sockets or ():
            place.listen(config.backlog)
        handshakes.begin(sockets or (), http, state.connections)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tells it in the log: what raises the signal once more may leave no time for it."""
        if self._handshakes is not None:
            await self._handshakes.end()
        await super().shutdown(sockets)
        _log.info("stopped")

    def _is_drained(self) -> bool:
        """Whether there is nobody left to wait for."""
        draining = self._draining
        if not draining.started:
            self._until = monotonic() + draining.timeout
            draining.start()
            self._close_idle()
        if self._signals > 1 and not self._broken_off:
            self._until = monotonic()
        if draining.active_requests and monotonic() < self._until:
            return False
        if draining.active_requests and not self._broken_off:
            self._broken_off = True
            self._until = monotonic() + LAST_WORDS
            draining.abort_all()
            return False
        self.config.timeout_graceful_shutdown = math.ceil(LAST_WORDS)
        return True

    def _close_idle(self) -> None:
        """Clients that come back find another server sooner over a new connection."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.close_when_idle()


def server(  # noqa: PLR0913 - all but the first are said by name
    app: Any,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    certificate: TlsCertificate | None = None,
    draining: DrainController | None = None,
    message_bytes: int | None = None,
    metrics: Metrics | None = None,
    peers: ClientAddressResolver | None = None,
) -> uvicorn.Server:
    """A server for the application, not running yet.

    It offers WebSockets where it is told how large a message of theirs may be. `metrics` count what
    is refused before there is a request, `peers` say how the log names where it came from.
    """
    metrics = metrics or Metrics()
    refused = _teller(metrics)
    handshakes = None
    if certificate is not None:
        metrics.track_certificate_expiry(lambda: certificate.expires_at)
        handshakes = Handshakes(certificate.context, refused, metrics, peers or ClientAddressResolver())
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=partial(BoundedHttpProtocol, on_refused=refused),  # type: ignore[arg-type]
        loop="auto",  # uvloop where it is installed
        ws="none" if message_bytes is None else BoundedWebSocketProtocol,
        ws_max_size=message_bytes or 0,
        ws_ping_interval=PING_INTERVAL_SECONDS,
        ws_ping_timeout=PING_TIMEOUT_SECONDS,
        ws_per_message_deflate=False,  # it would cost more than a token is worth
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # it would believe whoever is on this machine
        server_header=False,
        date_header=False,
        backlog=4096,
        timeout_keep_alive=IDLE_TIMEOUT,
        timeout_graceful_shutdown=30,
    )
    return DrainingServer(config, draining or DrainController(), handshakes)


def _teller(metrics: Metrics) -> Callable[[str], None]:
    """Counts connections that are refused, and says when there are too many: one line a minute."""
    hush = LogThrottle(max_lines=1, event="connections_not_logged")

    def refused(reason: str) -> None:
        metrics.count_refused_connection(reason)
        if reason == "connections" and hush.allow():
            _log.warning("too_many_connections", extra={"fields": {"most": max_connections()}})

    return refused


async def serve(serving: uvicorn.Server, places: list[socket.socket]) -> None:
    """Serves until told to stop. uvicorn would end the process where the start fails.

    Whether it did is told by `started`. Why it did not, the application says; uvicorn would say it
    twice more.
    """
    raise_file_limit()
    uvicorns = logging.getLogger("uvicorn.error")

    def has_news(record: logging.LogRecord) -> bool:
        return serving.started or record.exc_info is not None

    uvicorns.addFilter(has_news)
    try:
        with suppress(SystemExit):
            await serving.serve(places)
    finally:
        uvicorns.removeFilter(has_news)


async def until_started(serving: uvicorn.Server, task: "asyncio.Task[None]") -> bool:
    """Waits for a server that is being started; False if its task has ended before."""
    while not serving.started and not task.done():
        await asyncio.wait({task}, timeout=0.05)
    return serving.started
