"""The HTTP server: uvicorn with bounded connections, a TLS acceptor and a graceful drain."""

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
from dovetail.http.options import DEFAULT_WEBSOCKET_OPTIONS, WebSocketOptions
from dovetail.http.websocket.protocol import BoundedWebSocketProtocol
from dovetail.net.client_address import ClientAddressResolver
from dovetail.net.http_protocol import (
    DEFAULT_TIMEOUTS,
    BoundedHttpProtocol,
    ConnectionTimeouts,
)
from dovetail.net.open_files import max_connections, raise_file_limit
from dovetail.net.tls import TlsCertificate
from dovetail.telemetry.log_throttle import LogThrottle
from dovetail.telemetry.metrics import Metrics

ACCEPT_BATCH = 32  # further connections that are accepted when one is pending
ACCEPT_RETRY_SECONDS = 0.2  # after accept failed, for example without free file descriptors
#: OpenSSL's reasons -> values of `reason` in logs and metrics. Others are `other`.
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
#: Words in the alerts of clients that do not trust the certificate.
_UNTRUSTED_ALERTS = ("UNKNOWN_CA", "CERTIFICATE")
_UNUSED = "unused"

_log = logging.getLogger(__name__)


class TlsAcceptor:
    """Accept the connections of one server and run their TLS handshakes."""

    def __init__(
        self,
        context: ssl.SSLContext,
        on_refused: Callable[[str], None],
        metrics: Metrics,
        client_addresses: ClientAddressResolver,
        handshake_timeout_seconds: float = DEFAULT_TIMEOUTS.header_seconds,
    ) -> None:
        self._context = context
        self._timeout_seconds = handshake_timeout_seconds
        self._on_refused = on_refused  # called for connections over the limit
        self._metrics = metrics
        self._client_addresses = client_addresses
        self._throttle = LogThrottle(event="tls_failure_logs_suppressed", count_field="handshakes")
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
        """Accept connections from these listening sockets.

        `protocol_factory` creates the protocol of a connection; `connections` contains all open
        connections.
        """
        self._protocol_factory, self._connections = protocol_factory, connections
        for listener in sockets:
            listener.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(listener)))

    async def stop(self) -> None:
        """Stop accepting and cancel pending handshakes."""
        tasks = (*self._accepting, *self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                # The errors mean that no connection is pending, or that a client aborted its own.
                with suppress(BlockingIOError, ConnectionAbortedError):
                    self._start_handshake(*await loop.sock_accept(listener))
                    for _ in range(ACCEPT_BATCH):
                        self._start_handshake(*listener.accept())
            except OSError:  # no free file descriptors
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
            await asyncio.sleep(0)  # a flood of connections must not starve the loop

    def _start_handshake(self, connection: socket.socket, client: Any) -> None:
        if len(self._connections) + len(self._running) > max_connections():
            self._on_refused("connections")
            connection.close()
            return
        connection.setblocking(False)
        task = asyncio.create_task(self._handshake(connection, client))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _handshake(self, connection: socket.socket, client: Any) -> None:
        try:
            if not await _sends_data(connection, self._timeout_seconds):
                # Not logged: load balancers probe the port in this way.
                self._metrics.count_tls_failure(_UNUSED)
                return
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol_factory,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._timeout_seconds,
            )
            if transport.get_extra_info("cipher") is None:
                raise ConnectionResetError
        except OSError as error:
            self._report_failure(client, *classify_failure(error))

    def _report_failure(self, client: Any, reason: str, detail: str | None) -> None:
        self._metrics.count_tls_failure(reason)
        peer = self._client_addresses.normalize(client[0]) if isinstance(client, tuple) else None
        if self._throttle.allow(peer):
            details = {"peer": peer, "reason": reason, "detail": detail}
            fields = {name: value for name, value in details.items() if value is not None}
            _log.warning("tls_handshake_failed", extra={"fields": fields})


async def _sends_data(connection: socket.socket, timeout_seconds: float) -> bool:
    """Return whether the client sends data within the timeout. If not, close the connection."""
    loop = asyncio.get_running_loop()
    has_data = False
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        with suppress(OSError):  # disconnected, or TimeoutError
            async with asyncio.timeout(timeout_seconds):
                await ready.wait()
            has_data = bool(connection.recv(1, socket.MSG_PEEK))
    finally:
        loop.remove_reader(connection)
        if not has_data:
            connection.close()
    return has_data


def classify_failure(error: OSError) -> tuple[str, str | None]:
    """Classify a failed handshake: return our reason, from a closed set, and OpenSSL's."""
    if isinstance(error, ssl.SSLError):
        reason: str = getattr(error, "reason", None) or ""
        if "ALERT" in reason and any(word in reason for word in _UNTRUSTED_ALERTS):
            return "untrusted", reason
        return _REASONS.get(reason, "other"), reason or None
    if isinstance(error, ConnectionAbortedError):  # both event loops raise it on a timeout
        return "timeout", None
    return "hung_up", None


KEEP_ALIVE_TIMEOUT_SECONDS = 120  # agents pause between turns
FINAL_WRITE_TIMEOUT_SECONDS = 2.0  # for clients to read the end of a response, or its error


class DrainingServer(uvicorn.Server):
    """A server that finishes running responses before it stops.

    The first signal starts the drain, in which running responses have a limited time to finish; the
    second aborts them; the third exits immediately. Setting `should_exit` stops the server without
    a drain.
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
        # uvicorn would log a traceback for each cancelled task, though cancelling is intended.
        logging.getLogger("uvicorn.error").disabled |= self.force_exit

    async def on_tick(self, counter: int) -> bool:
        if await super().on_tick(counter):
            return True
        return self.force_exit or (self._signals > 0 and self._is_drained())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start on the given sockets. With TLS, the acceptor accepts connections, not uvicorn."""
        acceptor = self._acceptor
        if acceptor is None:
            await super().startup(sockets)
            return
        await super().startup([])
        config, state = self.config, self.server_state
        protocol_class: Callable[..., asyncio.Protocol] = config.http_protocol_class
        protocol_factory = partial(
            protocol_class, config=config, server_state=state, app_state=self.lifespan.state
        )
        for listener in sockets or ():
            listener.listen(config.backlog)
        acceptor.start(sockets or (), protocol_factory, state.connections)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop and log it here, because uvicorn's re-raised signal may end the process next."""
        if self._acceptor is not None:
            await self._acceptor.stop()
        await super().shutdown(sockets)
        _log.info("server_stopped")

    def _is_drained(self) -> bool:
        """Advance the drain. Returns True when no request has to be waited for."""
        drain = self._drain
        if not drain.started:
            self._deadline = monotonic() + drain.timeout
            drain.start()
            self._close_idle_connections()
        if self._signals > 1 and not self._aborted:
            self._deadline = monotonic()
        unfinished = drain.active_requests + drain.arriving_requests
        if monotonic() < self._deadline and (
            drain.active_requests or (self._aborted and unfinished)
        ):
            return False
        if unfinished and not self._aborted:
            self._aborted = True
            self._deadline = monotonic() + FINAL_WRITE_TIMEOUT_SECONDS
            drain.abort_all()
            return False
        self.config.timeout_graceful_shutdown = math.ceil(FINAL_WRITE_TIMEOUT_SECONDS)
        return True

    def _close_idle_connections(self) -> None:
        """Close idle connections, so that clients reconnect to another server."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.close_when_idle()


def create_server(  # noqa: PLR0913 - all but the first are keywords
    app: Any,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    certificate: TlsCertificate | None = None,
    drain: DrainController | None = None,
    max_message_bytes: int | None = None,
    metrics: Metrics | None = None,
    client_addresses: ClientAddressResolver | None = None,
    timeouts: ConnectionTimeouts = DEFAULT_TIMEOUTS,
    websocket_options: WebSocketOptions = DEFAULT_WEBSOCKET_OPTIONS,
) -> uvicorn.Server:
    """Create a server for the application without starting it.

    WebSockets are served if `max_message_bytes` is set. `metrics` counts connections that are
    refused before a request arrives; `client_addresses` formats addresses in the log.
    """
    metrics = metrics or Metrics()
    on_refused = _refusal_reporter(metrics)
    acceptor = None
    if certificate is not None:
        metrics.track_certificate_expiry(lambda: certificate.expires_at)
        acceptor = TlsAcceptor(
            certificate.context,
            on_refused,
            metrics,
            client_addresses or ClientAddressResolver(),
            timeouts.header_seconds,
        )
    websocket_protocol: Any = "none"
    if max_message_bytes is not None:
        websocket_protocol = partial(BoundedWebSocketProtocol, options=websocket_options)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=partial(BoundedHttpProtocol, on_refused=on_refused, timeouts=timeouts),  # type: ignore[arg-type]
        loop="auto",  # uvloop if it is installed
        ws=websocket_protocol,
        ws_max_size=max_message_bytes or 0,
        ws_ping_interval=websocket_options.ping_interval_seconds,
        ws_ping_timeout=websocket_options.ping_timeout_seconds,
        ws_per_message_deflate=False,  # costs more than it saves on single tokens
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # uvicorn would trust any local peer
        server_header=False,
        date_header=False,
        backlog=4096,
        timeout_keep_alive=KEEP_ALIVE_TIMEOUT_SECONDS,
        timeout_graceful_shutdown=30,
    )
    return DrainingServer(config, drain or DrainController(), acceptor)


def _refusal_reporter(metrics: Metrics) -> Callable[[str], None]:
    """Return a callback that counts refused connections and logs that the limit is reached.

    It logs at most once per minute.
    """
    throttle = LogThrottle(max_lines=1, event="connection_logs_suppressed")

    def report_refused(reason: str) -> None:
        metrics.count_refused_connection(reason)
        if reason == "connections" and throttle.allow():
            fields = {"limit": max_connections()}
            _log.warning("connection_limit_reached", extra={"fields": fields})

    return report_refused


async def run_server(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
    """Serve until stopped. Returns after a failed start, where uvicorn would exit the process.

    `server.started` is set if the start succeeded. The application reports why it failed; uvicorn's
    own messages about it are filtered.
    """
    raise_file_limit()
    uvicorn_logger = logging.getLogger("uvicorn.error")

    def is_relevant(record: logging.LogRecord) -> bool:
        return server.started or record.exc_info is not None

    uvicorn_logger.addFilter(is_relevant)
    try:
        with suppress(SystemExit):
            await server.serve(sockets)
    finally:
        uvicorn_logger.removeFilter(is_relevant)


async def wait_until_started(server: uvicorn.Server, task: "asyncio.Task[None]") -> bool:
    """Wait for a server to start. Returns False if its task ended before."""
    while not server.started and not task.done():
        await asyncio.wait({task}, timeout=0.05)
    return server.started
