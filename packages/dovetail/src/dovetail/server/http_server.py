"""The server under the application: uvicorn on uvloop, with connections that are bounded."""

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from time import monotonic
from types import FrameType
from typing import Any

import uvicorn

from dovetail.http.drain import DrainController
from dovetail.http.websocket.protocol import (
    PING_INTERVAL_SECONDS,
    PING_TIMEOUT_SECONDS,
    BoundedWebSocketProtocol,
)
from dovetail.net.client_address import ClientAddressResolver
from dovetail.net.http_protocol import (
    HEADER_TIMEOUT_SECONDS,
    BoundedHttpProtocol,
    max_connections,
    raise_file_limit,
)
from dovetail.net.tls import TlsCertificate
from dovetail.telemetry.log_throttle import LogThrottle
from dovetail.telemetry.metrics import Metrics

ACCEPT_BATCH = 32  # connections more that are taken where one was waiting
ACCEPT_RETRY_SECONDS = (
    0.2  # seconds, where the system has no connection for us, though one is there
)
#: OpenSSL's names for what went wrong, and what we call it. Others are `other`.
_REASONS = {
    "HTTP_REQUEST": "plain_http",
    "HTTPS_PROXY_REQUEST": "plain_http",
    "UNSUPPORTED_PROTOCOL": "protocol",
    "TLSV1_ALERT_PROTOCOL_VERSION": "protocol",
    "NO_SHARED_CIPHER": "cipher",
    "NO_SUITABLE_SIGNATURE_ALGORITHM": "cipher",
    "NO_SUITABLE_KEY_SHARE": "cipher",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "cipher",
    "WRONG_VERSION_NUMBER": "not_tls",
    "RECORD_LAYER_FAILURE": "not_tls",
    "PACKET_LENGTH_TOO_LONG": "not_tls",
    "UNEXPECTED_MESSAGE": "not_tls",
    "BAD_RECORD_TYPE": "not_tls",
}
#: In the alerts of clients that refuse what they are shown.
_UNTRUSTED_ALERTS = ("UNKNOWN_CA", "CERTIFICATE")
_UNUSED = "unused"

_log = logging.getLogger(__name__)


class TlsAcceptor:
    """Takes the connections of one server. Those that speak TLS become HTTP connections."""

    def __init__(
        self,
        context: ssl.SSLContext,
        on_refused: Callable[[str], None],
        metrics: Metrics,
        client_addresses: ClientAddressResolver,
    ) -> None:
        self._context = context
        self._on_refused = on_refused  # hears of connections for which there is no room
        self._metrics = metrics
        self._client_addresses = client_addresses
        self._throttle = LogThrottle(event="tls_failures_not_logged", count_field="handshakes")
        self._protocol_factory: Callable[[], asyncio.Protocol] = asyncio.Protocol
        self._connections: Collection[object] = ()
        self._accepting: list[asyncio.Task[None]] = []
        self._running: set[asyncio.Task[None]] = set()

    def start(
        self,
        sockets: Iterable[socket.socket],
        protocol_factory: Callable[[], asyncio.Protocol],
        connections: Collection[object],
    ) -> None:
        """Takes what comes to places that listen. `http` makes what a connection becomes, and
        `connections` are those that it has made.
        """
        self._protocol_factory, self._connections = protocol_factory, connections
        for place in sockets:
            place.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(place)))

    async def stop(self) -> None:
        """Nothing more is taken, and what is not done yet is given up."""
        tasks = (*self._accepting, *self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, place: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                # Until there are no more for now, or one has gone again.
                with suppress(BlockingIOError, ConnectionAbortedError):
                    self._start_handshake(*await loop.sock_accept(place))
                    for _ in range(ACCEPT_BATCH):
                        self._start_handshake(*place.accept())
            except OSError:  # there are no more files
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
            await asyncio.sleep(0)  # a flood of them must not keep others waiting

    def _start_handshake(self, connected: socket.socket, client: Any) -> None:
        if len(self._connections) + len(self._running) > max_connections():
            self._on_refused("connections")
            connected.close()
            return
        connected.setblocking(False)
        task = asyncio.create_task(self._handshake(connected, client))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _handshake(self, connected: socket.socket, client: Any) -> None:
        try:
            if not await _sends_data(connected):
                self._metrics.count_tls_failure(
                    _UNUSED
                )  # without a line: load balancers look so for life
                return
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol_factory,
                connected,
                ssl=self._context,
                ssl_handshake_timeout=HEADER_TIMEOUT_SECONDS,
            )
            if transport.get_extra_info("cipher") is None:
                raise ConnectionResetError
        except OSError as error:
            self._report_failure(client, *classify_failure(error))

    def _report_failure(self, client: Any, reason: str, detail: str | None) -> None:
        self._metrics.count_tls_failure(reason)
        peer = self._client_addresses.normalize(client[0]) if isinstance(client, tuple) else None
        if self._throttle.allow(peer):
            known = {"peer": peer, "reason": reason, "detail": detail}
            fields = {name: value for name, value in known.items() if value is not None}
            _log.warning("tls_failed", extra={"fields": fields})


async def _sends_data(connected: socket.socket) -> bool:
    """Whether the client says anything in the time that it has; one that does not is closed."""
    loop = asyncio.get_running_loop()
    heard = False
    ready = asyncio.Event()
    loop.add_reader(connected, ready.set)
    try:
        with suppress(OSError):  # it is gone, or, which is one too, there is no time left
            async with asyncio.timeout(HEADER_TIMEOUT_SECONDS):
                await ready.wait()
            heard = bool(connected.recv(1, socket.MSG_PEEK))
    finally:
        loop.remove_reader(connected)
        if not heard:
            connected.close()
    return heard


def classify_failure(error: OSError) -> tuple[str, str | None]:
    """Why a handshake failed: in a word of ours, from a closed set, and in OpenSSL's own."""
    if isinstance(error, ssl.SSLError):
        told: str = getattr(error, "reason", None) or ""
        if "ALERT" in told and any(word in told for word in _UNTRUSTED_ALERTS):
            return "untrusted", told
        return _REASONS.get(told, "other"), told or None
    if isinstance(error, ConnectionAbortedError):  # so both loops say that it took too long
        return "timeout", None
    return "hung_up", None


KEEP_ALIVE_TIMEOUT_SECONDS = (
    120  # seconds that an unused connection stays open: agents pause between turns
)
FINAL_WRITE_TIMEOUT_SECONDS = (
    2.0  # seconds for clients to read the end of an answer, or that it was broken off
)


class DrainingServer(uvicorn.Server):
    """A server that finishes what it has begun.

    The first signal lets running answers go on for a while, the second breaks them off, the third
    waits for nothing at all. What sets `should_exit` itself has the server end at once.
    """

    def __init__(
        self, config: uvicorn.Config, drain: DrainController, acceptor: TlsAcceptor | None = None
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._acceptor = acceptor
        self._signals = 0
        self._aborted = False
        self._deadline = 0.0

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
        handshakes = self._acceptor
        if handshakes is None:
            await super().startup(sockets)
            return
        await super().startup([])
        config, state = self.config, self.server_state
        make: Callable[..., asyncio.Protocol] = config.http_protocol_class
        http = partial(make, config=config, server_state=state, app_state=self.lifespan.state)
        for place in sockets or ():
            place.listen(config.backlog)
        handshakes.start(sockets or (), http, state.connections)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tells it in the log: what raises the signal once more may leave no time for it."""
        if self._acceptor is not None:
            await self._acceptor.stop()
        await super().shutdown(sockets)
        _log.info("stopped")

    def _is_drained(self) -> bool:
        """Whether there is nobody left to wait for."""
        draining = self._drain
        if not draining.started:
            self._deadline = monotonic() + draining.timeout
            draining.start()
            self._close_idle_connections()
        if self._signals > 1 and not self._aborted:
            self._deadline = monotonic()
        if draining.active_requests and monotonic() < self._deadline:
            return False
        if draining.active_requests and not self._aborted:
            self._aborted = True
            self._deadline = monotonic() + FINAL_WRITE_TIMEOUT_SECONDS
            draining.abort_all()
            return False
        self.config.timeout_graceful_shutdown = math.ceil(FINAL_WRITE_TIMEOUT_SECONDS)
        return True

    def _close_idle_connections(self) -> None:
        """Clients that come back find another server sooner over a new connection."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.close_when_idle()


def create_server(  # noqa: PLR0913 - all but the first are said by name
    app: Any,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    certificate: TlsCertificate | None = None,
    drain: DrainController | None = None,
    max_message_bytes: int | None = None,
    metrics: Metrics | None = None,
    client_addresses: ClientAddressResolver | None = None,
) -> uvicorn.Server:
    """A server for the application, not running yet.

    It offers WebSockets where it is told how large a message of theirs may be. `metrics` count what
    is refused before there is a request, `peers` say how the log names where it came from.
    """
    metrics = metrics or Metrics()
    refused = _refusal_reporter(metrics)
    handshakes = None
    if certificate is not None:
        metrics.track_certificate_expiry(lambda: certificate.expires_at)
        handshakes = TlsAcceptor(
            certificate.context, refused, metrics, client_addresses or ClientAddressResolver()
        )
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=partial(BoundedHttpProtocol, on_refused=refused),  # type: ignore[arg-type]
        loop="auto",  # uvloop where it is installed
        ws="none" if max_message_bytes is None else BoundedWebSocketProtocol,
        ws_max_size=max_message_bytes or 0,
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
        timeout_keep_alive=KEEP_ALIVE_TIMEOUT_SECONDS,
        timeout_graceful_shutdown=30,
    )
    return DrainingServer(config, drain or DrainController(), handshakes)


def _refusal_reporter(metrics: Metrics) -> Callable[[str], None]:
    """Counts connections that are refused, and says when there are too many: one line a minute."""
    hush = LogThrottle(max_lines=1, event="connections_not_logged")

    def refused(reason: str) -> None:
        metrics.count_refused_connection(reason)
        if reason == "connections" and hush.allow():
            _log.warning("too_many_connections", extra={"fields": {"most": max_connections()}})

    return refused


async def run_server(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
    """Serves until told to stop. uvicorn would end the process where the start fails.

    Whether it did is told by `started`. Why it did not, the application says; uvicorn would say it
    twice more.
    """
    raise_file_limit()
    uvicorns = logging.getLogger("uvicorn.error")

    def has_news(record: logging.LogRecord) -> bool:
        return server.started or record.exc_info is not None

    uvicorns.addFilter(has_news)
    try:
        with suppress(SystemExit):
            await server.serve(sockets)
    finally:
        uvicorns.removeFilter(has_news)


async def wait_until_started(server: uvicorn.Server, task: "asyncio.Task[None]") -> bool:
    """Waits for a server that is being started; False if its task has ended before."""
    while not server.started and not task.done():
        await asyncio.wait({task}, timeout=0.05)
    return server.started
