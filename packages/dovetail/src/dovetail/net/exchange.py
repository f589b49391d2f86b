"""One HTTP request and its response, over raw ASGI."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from dovetail_model import InvalidRequest

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[str, str]]
Body = TypeVar("Body")

JSON_CONTENT_TYPE = "application/json"
EVENT_STREAM_CONTENT_TYPE = "text/event-stream; charset=utf-8"
MAX_HEADER_VALUE_CHARS = 4096
_ENCODED_SLASH = "%2F"
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


class ClientDisconnected(Exception):
    """The client has disconnected."""


class Exchange:
    """A request and the methods to respond to it.

    `receive`, `send` and `extensions` can be replaced while the request is handled, for example to
    capture the response.

    headers: Names in lower case; the values of a repeated header are joined with commas.
    peer: Address of the client.
    extensions: Extensions of the ASGI server, by name.
    status: Status of the response, None until the response has started.
    """

    __slots__ = (
        "extensions",
        "headers",
        "method",
        "path",
        "peer",
        "query_string",
        "receive",
        "send",
        "status",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path = _decode_path(scope).removeprefix(scope.get("root_path", ""))
        self.query_string: bytes = scope.get("query_string", b"")
        self.headers = _decode_headers(scope["headers"])
        client = scope.get("client")
        self.peer: str | None = client[0] if client else None
        # Removed from the scope: the direct writer refers to uvicorn's objects of the request, and
        # these to the scope.
        self.extensions: Mapping[str, Any] = scope.pop("extensions", None) or {}
        self.receive: Receive = receive
        self.send: Send = send
        self.status: int | None = None

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.query_string.decode("latin-1")))

    async def read_json(self, type_: type[Body]) -> Body:
        """Read the complete body and decode it as JSON of this type."""
        parts, more = [], True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        try:
            return msgspec.json.decode(b"".join(parts), type=type_)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"invalid request body: {error}") from error

    async def start_response(self, status: int, content_type: str, headers: Headers = ()) -> None:
        """Send status and headers. The caller sends the body."""
        self.status = status
        lines = [(b"content-type", content_type.encode())]
        for name, value in (*self._common_headers(), *headers):
            lines.append((name.encode(), _encode_header_value(value)))
        await self.send({"type": "http.response.start", "status": status, "headers": lines})

    async def write(self, body: bytes) -> None:
        """Send a part of the body; `end` sends the last part."""
        await self.send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, body: bytes = b"") -> None:
        """Send the last part of the body."""
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def respond(
        self, status: int, body: bytes, content_type: str = JSON_CONTENT_TYPE, headers: Headers = ()
    ) -> None:
        """Send a complete response."""
        length = ("content-length", str(len(body)))
        await self.start_response(status, content_type, [length, *headers])
        await self.end(body)

    def _common_headers(self) -> Headers:
        """Return headers that every response has, including errors. Subclasses override this."""
        return ()


def _encode_header_value(value: str) -> bytes:
    """Encode a value so that every server and client accepts it."""
    return _UNPRINTABLE.sub("?", value)[:MAX_HEADER_VALUE_CHARS].encode()


def decode_slashes(segment: str) -> str:
    """Decode the slashes in a part of an exchange's path, such as the name of a model."""
    return segment.replace(_ENCODED_SLASH, "/")


def _decode_path(scope: Scope) -> str:
    """Return the path. An encoded slash stays encoded: it does not separate segments."""
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or b""
    if b"%" not in raw:
        return path
    parts = raw.decode("latin-1").replace("%2f", _ENCODED_SLASH).split(_ENCODED_SLASH)
    return path if len(parts) == 1 else _ENCODED_SLASH.join(map(unquote, parts))


def _decode_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


class DisconnectGuard:
    """Cancel the block and raise `ClientDisconnected` when the client disconnects.

    One task waits for the disconnect. The block runs in the caller's own task, without overhead.
    """

    __slots__ = ("_armed", "_disconnected", "_receive", "_task", "_watcher")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._armed = True
        self._disconnected = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._watcher = asyncio.create_task(self._wait_for_disconnect())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
        task, self._task = self._task, None
        if self._disconnected and task is not None:
            task.uncancel()
            if kind is None or issubclass(kind, asyncio.CancelledError):
                raise ClientDisconnected from None

    def release(self) -> None:
        """Disarm the guard: the response is complete except for its last bytes.

        A cancelled task refers to this object through its traceback. It is not kept here, since
        such a cycle would leave all objects of the request to the garbage collector.
        """
        self._armed = False
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()

    async def _wait_for_disconnect(self) -> None:
        message = await self._receive()
        while message["type"] != "http.disconnect":
            message = await self._receive()
        if self._armed and self._task is not None:
            self._disconnected = True
            self._task.cancel()
