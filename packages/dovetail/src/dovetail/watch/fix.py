"""`--fix`: serve the traffic through the real pipeline, and forward what it does not support.

Requests of the three APIs go to our own application. Requests that it rejects (a body it cannot
parse, an unknown model, an image) and all other requests are forwarded to the server. This is
decided before a response begins; a response that has begun is not switched.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import aclosing
from itertools import count
from time import monotonic, time

from dovetail.http.app import App
from dovetail.http.body import decode_content
from dovetail.net.exchange import Message, Receive, Scope, Send
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, send_request
from dovetail.watch.exchange import (
    CapturedExchange,
    ResponderName,
    find_codec,
    redact_headers,
    redact_target,
)
from dovetail_model import ClientError, EngineError, Forbidden

PASSTHROUGH_TIMEOUTS = Timeouts(read=3600.0)
#: Headers that concern one connection, not the message.
_HOP_BY_HOP_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
#: Credentials of the client; dropped if the server's own key is known.
_CREDENTIAL_HEADERS = {"authorization", "x-api-key"}


async def forward_request(endpoint: Endpoint, scope: Scope, body: bytes, send: Send) -> None:
    """Forward a request to the server, and its response to the client."""
    query = scope.get("query_string", b"").decode("latin-1")
    path = scope["raw_path"].decode("latin-1") if scope.get("raw_path") else scope["path"]
    dropped = _HOP_BY_HOP_HEADERS | (
        _CREDENTIAL_HEADERS if "authorization" in endpoint.headers else set()
    )
    headers = {
        name: value.decode("latin-1")
        for raw, value in scope["headers"]
        if (name := raw.decode("latin-1").lower()) not in dropped
    }
    target = f"{path}?{query}" if query else path
    request = ClientRequest(scope["method"], target, body, headers, PASSTHROUGH_TIMEOUTS)
    started = False
    try:
        async with send_request(endpoint, request) as reply:
            started = True
            await send(_response_start(reply.status, reply.headers))
            if scope["method"] != "HEAD":
                async with aclosing(reply.iter_chunks()) as chunks:
                    async for chunk in chunks:
                        await send(_response_body(chunk, more=True))
            await send(_response_body(b"", more=False))
    except EngineError as error:
        if started:
            return  # the response cannot be replaced: abort, as the server did
        await send_error(502, error.message, send)


async def send_error(status: int, message: str, send: Send) -> None:
    """Send an error of our own."""
    await send(_response_start(status, {"content-type": "text/plain"}))
    await send(_response_body(f"dovetail watch: {message}\n".encode(), more=False))


def _response_start(status: int, headers: Mapping[str, str]) -> Message:
    lines = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in headers.items()
        if name.lower() not in _HOP_BY_HOP_HEADERS - {"content-length"}
    ]
    return {"type": "http.response.start", "status": status, "headers": lines}


def _response_body(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


#: Statuses of our application that cause a fallback to the server.
_FALLBACK_STATUSES = frozenset({400, 404, 405, 408, 413, 415, 422, 426, 500, 501})
_OVERFLOW_MARKERS = (b"prompt is too long", b"context_length_exceeded")
_MAX_OBSERVED_BYTES = 64 << 20  # of a captured body
_MAX_BODY_BYTES = 512 << 20  # of a forwarded body, which is buffered
_EPOCH_OFFSET = time() - monotonic()


class FixApp:
    """An ASGI application in front of ours. `on_exchange` gets each exchange of the three APIs."""

    def __init__(
        self,
        app: App,
        endpoint: Endpoint,
        on_exchange: Callable[[CapturedExchange], None],
        on_fallback: Callable[[str], None],
        *,
        max_body_bytes: int = _MAX_BODY_BYTES,
    ) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._endpoint = endpoint
        self._on_exchange = on_exchange
        self._on_fallback = on_fallback
        self._numbers = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_for_app(scope):
            await self._app(scope, receive, send)
            return
        body = await _read_body(receive, self._max_body_bytes)
        if body is None:
            return  # the client disconnected
        if len(body) > self._max_body_bytes:
            limit = f"the request body exceeds {_MAX_BODY_BYTES} bytes, the limit of --fix"
            await send_error(413, limit, send)
            return
        target = scope["path"]
        if find_codec(scope["method"], target) is None:
            await forward_request(self._endpoint, scope, body, send)
            return
        capture = _ResponseCapture(scope, body, send)
        try:
            await self._respond(scope, body, receive, capture)
        finally:
            self._on_exchange(capture.to_exchange(next(self._numbers)))

    def _is_for_app(self, scope: Scope) -> bool:
        """Return whether only our application may respond, because a web page sent the request."""
        policy = self._app.options.browser_policy
        headers = {
            name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]
        }
        try:
            policy.require_host(headers, has_keys=False)
            policy.require_origin(headers, has_keys=False)
        except Forbidden:
            return True
        return policy.is_preflight(scope["method"], headers)

    async def _respond(
        self, scope: Scope, body: bytes, receive: Receive, capture: "_ResponseCapture"
    ) -> None:
        filter_ = _RefusalFilter(capture.send)
        capture.server = "dovetail"
        if len(body) > _MAX_OBSERVED_BYTES:
            filter_.refusal = "the body is too large"
        else:
            # Without extensions: a direct write to the connection would bypass the filter.
            await self._app({**scope, "extensions": {}}, _replay_body(body, receive), filter_.send)
        if filter_.refusal is not None:
            capture.server = "upstream"
            self._on_fallback(filter_.refusal)
            await forward_request(self._endpoint, scope, body, capture.send)


class _RefusalFilter:
    """Pass a response through, unless it is a rejection: that is buffered.

    A prompt that is too long does not cause a fallback: it is too long for the server as well, and
    clients recognize our error.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._buffered: list[Message] = []
        self.refusal: str | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] in _FALLBACK_STATUSES:
            self.refusal = str(message["status"])
        if self.refusal is None:
            await self._send(message)
            return
        self._buffered.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            await self._resolve_refusal()

    async def _resolve_refusal(self) -> None:
        """Decide about a complete rejection."""
        start, *parts = self._buffered
        body = b"".join(part.get("body", b"") for part in parts)
        if any(marker in body for marker in _OVERFLOW_MARKERS):
            self.refusal = None
            for message in self._buffered:
                await self._send(message)
        else:
            self.refusal = _refusal_reason(start["status"], body)


class _ResponseCapture:
    """Captures a response on its way to the client, with its times."""

    def __init__(self, scope: Scope, body: bytes, send: Send) -> None:
        self._scope = scope
        self._body = body
        self._send = send
        self._began = monotonic()
        self._status = 0
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._marks: list[tuple[float, int]] = []
        self._size = 0
        self._complete = False
        self.server: ResponderName = "upstream"

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = redact_headers(message["headers"])
        else:
            self._capture(message.get("body", b""))
            self._complete = not message.get("more_body", False)
        await self._send(message)

    def _capture(self, data: bytes) -> None:
        if data and self._size < _MAX_OBSERVED_BYTES:
            self._size += len(data)
            self._parts.append(data)
            self._marks.append((monotonic() - self._began, self._size))

    def to_exchange(self, number: int) -> CapturedExchange:
        headers = redact_headers(self._scope["headers"])
        query = self._scope.get("query_string", b"").decode("latin-1")
        return CapturedExchange(
            number=number,
            method=self._scope["method"],
            target=redact_target(self._scope["path"] + (f"?{query}" if query else "")),
            began=_EPOCH_OFFSET + self._began,
            request_received=0.0,
            ended=monotonic() - self._began,
            status=self._status,
            request_headers=headers,
            response_headers=self._headers,
            request=_decode_content(self._body, headers.pop("content-encoding", "")),
            response=b"".join(self._parts),
            marks=tuple(self._marks),
            truncated=not self._complete,
            server=self.server,
        )


def _decode_content(body: bytes, coding: str) -> bytes:
    try:
        return decode_content(body, coding, _MAX_OBSERVED_BYTES)
    except ClientError:
        return body


async def _read_body(receive: Receive, max_bytes: int) -> bytes | None:
    """Read the body, until it is known to be too large; None after a disconnect."""
    parts: list[bytes] = []
    size = 0
    while size <= max_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body", False):
            break
    return b"".join(parts)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the body again, then further messages of the client."""
    replayed = False

    async def replay() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _refusal_reason(status: int, body: bytes) -> str:
    """Return a short reason why our application rejected a request."""
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return str(status)
    return f"{status}: {message[:100]}"
