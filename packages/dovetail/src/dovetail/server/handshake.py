"""TLS before there is a request: connections are taken here, and a handshake that fails is told.

Left to themselves, the loops keep it to themselves when one fails.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any

from dovetail.net.client_address import ClientAddressResolver
from dovetail.net.http_protocol import HEADER_TIMEOUT_SECONDS, max_connections
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
