"""A request to one of the APIs and its response, and the capture of payloads."""

import re
from time import perf_counter
from typing import Literal

from dovetail.access.auth import ANONYMOUS
from dovetail.access.browser import is_loopback
from dovetail.http.ids import new_id
from dovetail.net.exchange import Exchange, Headers, Message, Receive, Scope, Send
from dovetail.net.response_writer import DIRECT_WRITER_EXTENSION
from dovetail.responses.connection_cache import ConnectionCache

_FORWARDED_HEADERS = (
    *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    *("x-real-ip", "cf-connecting-ip", "true-client-ip"),
)
_VALID_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class ApiExchange(Exchange):
    """A request to one of the APIs, as passed to handlers.

    started_at: When the request arrived, in the time of `perf_counter`.
    request_id: Id that the client sent, or a new one.
    connected_from: Address of the connection's other end, which may be a proxy.
    caller: The sender, identified by its API key.
    tenant: Tenant of the caller; "" if there is none.
    transport: Whether the request arrived over HTTP or as a message of a WebSocket.
    local_responses: Responses that only this WebSocket connection can refer to.
    warm_only: Whether to generate no output; the next request of the connection continues this one.
    held_bytes: Bytes that are reserved for the request until it has finished.
    extra_headers: Headers that are added to the response or error.
    """

    __slots__ = (
        "caller",
        "connected_from",
        "extra_headers",
        "held_bytes",
        "local_responses",
        "request_id",
        "started_at",
        "tenant",
        "transport",
        "warm_only",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started_at = perf_counter()
        super().__init__(scope, receive, send)
        self.connected_from: str | None = None
        self.caller = ANONYMOUS
        self.tenant = ""
        self.transport: Literal["http", "websocket"] = "http"
        self.local_responses: ConnectionCache | None = None
        self.warm_only = False
        self.held_bytes = 0
        self.extra_headers: list[tuple[str, str]] = []
        client_id = self.headers.get("x-request-id", "")
        self.request_id = client_id if _VALID_REQUEST_ID.fullmatch(client_id) else new_id("req_")

    @property
    def is_upgrade(self) -> bool:
        """Whether this is the handshake of a WebSocket, not a request over it."""
        return self.transport == "websocket" and self.method == "GET"

    @property
    def is_local(self) -> bool:
        """Whether a client on this machine sent the request, without a proxy in between."""
        host = self.headers.get("host", "").rpartition("@")[2]
        name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        return (
            self.connected_from is not None
            and is_loopback(self.connected_from.partition("%")[0].removeprefix("::ffff:"))
            and is_loopback(name.lower())
            and not any(header in self.headers for header in _FORWARDED_HEADERS)
        )

    def wants_debug(self, topic: str) -> bool:
        """Return whether the client requested this topic in `x-dovetail-debug`."""
        topics = self.headers.get("x-dovetail-debug")
        return topics is not None and topic in (word.strip() for word in topics.lower().split(","))

    def _common_headers(self) -> Headers:
        ids = (("x-request-id", self.request_id), ("request-id", self.request_id))
        return (*ids, *self.extra_headers)


MAX_PAYLOAD_BYTES = 1 << 20  # captured of each request body and each response body


class PayloadCapture:
    """Capture the body that an exchange sends. Disables direct writes, which would bypass it."""

    __slots__ = ("_chunks", "_max_bytes", "_send", "_size")

    def __init__(self, exchange: ApiExchange, max_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._chunks: list[bytes] = []
        self._size = 0
        self._send = exchange.send
        exchange.send = self._forward
        extensions = exchange.extensions.items()
        exchange.extensions = {
            name: value for name, value in extensions if name != DIRECT_WRITER_EXTENSION
        }

    @property
    def response_body(self) -> bytes:
        """The first `max_bytes` of the response body."""
        return b"".join(self._chunks)

    async def _forward(self, message: Message) -> None:
        body = message.get("body") or b""
        if body and self._size < self._max_bytes:
            self._chunks.append(body[: self._max_bytes - self._size])
            self._size += len(self._chunks[-1])
        await self._send(message)
