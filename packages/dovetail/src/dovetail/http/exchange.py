"""One request and its answer, as ASGI carries them."""

import re
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any, Literal
from urllib.parse import parse_qsl

from dovetail.access.auth import ANONYMOUS
from dovetail.http.ids import new_id
from dovetail.net.exchange import DIRECT_WRITER_EXTENSION, Message, Receive, Scope, Send
from dovetail.responses.connection_cache import ConnectionCache

Headers = Iterable[tuple[str, str]]

JSON_TYPE = "application/json"
_VALID_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_MAX_HEADER_VALUE_CHARS = 4096


class ApiExchange:
    """What a handler gets. `status` is None until an answer has begun.

    `extra` are headers that the answer has whatever it turns out to be. `local` are the responses
    that the connection holds for itself. `warms`: nothing is to be generated, the next request of
    the connection goes on from this one. `peer` is the address that it comes from: for the log.
    `held` are the bytes that it is counted with, as long as it is not over.
    """

    __slots__ = (
        "caller",
        "extensions",
        "extra_headers",
        "headers",
        "held_bytes",
        "local_responses",
        "method",
        "path",
        "peer",
        "query_string",
        "receive",
        "request_id",
        "send",
        "started_at",
        "status",
        "tenant",
        "transport",
        "warm_only",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started_at = perf_counter()
        self.method: str = scope["method"]
        self.path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        self.query_string: bytes = scope.get("query_string", b"")
        self.headers = _decode_headers(scope["headers"])
        client = scope.get("client")
        self.peer: str | None = client[0] if client else None
        self.extensions: Mapping[str, Any] = scope.get("extensions") or {}
        self.receive: Receive = receive
        self.send: Send = send
        self.status: int | None = None
        self.caller = ANONYMOUS
        self.tenant = ""
        self.transport: Literal["http", "websocket"] = "http"
        self.local_responses: ConnectionCache | None = None
        self.warm_only = False
        self.held_bytes = 0
        self.extra_headers: list[tuple[str, str]] = []
        given = self.headers.get("x-request-id", "")
        self.request_id = given if _VALID_REQUEST_ID.fullmatch(given) else new_id("req_")

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.query_string.decode("latin-1")))

    @property
    def is_upgrade(self) -> bool:
        """Whether this is the request for a WebSocket, not one that came over it."""
        return self.transport == "websocket" and self.method == "GET"

    def wants_debug(self, topic: str) -> bool:
        """Whether the client asked for more about its request, in `x-dovetail-debug`."""
        asked = self.headers.get("x-dovetail-debug")
        return asked is not None and topic in (word.strip() for word in asked.lower().split(","))

    async def start(self, status: int, content_type: str, headers: Headers = ()) -> None:
        """Status and headers. The body is the caller's."""
        self.status = status
        lines = [
            (b"content-type", content_type.encode()),
            (b"x-request-id", self.request_id.encode()),
            (b"request-id", self.request_id.encode()),
            *(
                (name.encode(), _encode_header_value(value))
                for name, value in (*self.extra_headers, *headers)
            ),
        ]
        await self.send({"type": "http.response.start", "status": status, "headers": lines})

    async def respond(
        self, status: int, body: bytes, content_type: str = JSON_TYPE, headers: Headers = ()
    ) -> None:
        """A whole answer."""
        length = ("content-length", str(len(body)))
        await self.start(status, content_type, [length, *headers])
        await self.send(final_body_message(body))


def final_body_message(body: bytes = b"") -> Message:
    """The last piece of a body."""
    return {"type": "http.response.body", "body": body, "more_body": False}


def _encode_header_value(value: str) -> bytes:
    """A header's value that no server chokes on."""
    return _UNPRINTABLE.sub("?", value)[:_MAX_HEADER_VALUE_CHARS].encode()


def _decode_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


MAX_PAYLOAD_BYTES = 1 << 20  # bytes of a request's body, and of an answer, that are kept


class PayloadCapture:
    """Stands between an exchange and its client. Every byte has to come by: nothing goes direct."""

    __slots__ = ("_chunks", "_send", "_size")

    def __init__(self, exchange: ApiExchange) -> None:
        self._chunks: list[bytes] = []
        self._size = 0
        self._send = exchange.send
        exchange.send = self._forward
        others = exchange.extensions.items()
        exchange.extensions = {
            name: value for name, value in others if name != DIRECT_WRITER_EXTENSION
        }

    @property
    def response_body(self) -> bytes:
        """The beginning of what was sent."""
        return b"".join(self._chunks)

    async def _forward(self, message: Message) -> None:
        body = message.get("body") or b""
        if body and self._size < MAX_PAYLOAD_BYTES:
            self._chunks.append(body[: MAX_PAYLOAD_BYTES - self._size])
            self._size += len(self._chunks[-1])
        await self._send(message)
