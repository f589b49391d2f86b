"""`--fix`: the same traffic through the real pipeline, and whatever is uncertain handed on.

A request of one of the three APIs goes to our own application. What that would refuse (a body it
cannot read, a model it does not know, an image) goes to the server instead, and so does everything
else: the server decides. Only before an answer has begun; an answer that began is ours to end.
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
from dovetail_model import ClientError, EngineError

PASSTHROUGH_TIMEOUTS = Timeouts(read=3600.0)
#: Headers that are about one connection, not about the message.
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
_CREDENTIAL_HEADERS = {
    "authorization",
    "x-api-key",
}  # of the client, where the server's own key is known


async def forward_request(endpoint: Endpoint, scope: Scope, body: bytes, answer: Send) -> None:
    """Asks the server, and answers what it answers."""
    query = scope.get("query_string", b"").decode("latin-1")
    path = scope["raw_path"].decode("latin-1") if scope.get("raw_path") else scope["path"]
    kept_back = _HOP_BY_HOP_HEADERS | (
        _CREDENTIAL_HEADERS if "authorization" in endpoint.headers else set()
    )
    headers = {
        name: value.decode("latin-1")
        for raw, value in scope["headers"]
        if (name := raw.decode("latin-1").lower()) not in kept_back
    }
    target = f"{path}?{query}" if query else path
    call = ClientRequest(scope["method"], target, body, headers, PASSTHROUGH_TIMEOUTS)
    begun = False
    try:
        async with send_request(endpoint, call) as reply:
            begun = True
            await answer(_response_start(reply.status, reply.headers))
            if scope["method"] != "HEAD":
                async with aclosing(reply.iter_chunks()) as chunks:
                    async for chunk in chunks:
                        await answer(_response_body(chunk, more=True))
            await answer(_response_body(b"", more=False))
    except EngineError as error:
        if begun:
            return  # there is no second answer: the connection breaks, as the server's did
        await send_error(502, error.message, answer)


async def send_error(status: int, message: str, answer: Send) -> None:
    """An answer of our own, in place of the server's."""
    await answer(_response_start(status, {"content-type": "text/plain"}))
    await answer(_response_body(f"dovetail watch: {message}\n".encode(), more=False))


def _response_start(status: int, headers: Mapping[str, str]) -> Message:
    lines = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in headers.items()
        if name.lower() not in _HOP_BY_HOP_HEADERS - {"content-length"}
    ]
    return {"type": "http.response.start", "status": status, "headers": lines}


def _response_body(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


#: Statuses with which our application says that a request is not for it.
_FALLBACK_STATUSES = frozenset({400, 404, 405, 408, 413, 415, 422, 426, 500, 501})
_OVERFLOW_MARKERS = (b"prompt is too long", b"context_length_exceeded")
_MAX_OBSERVED_BYTES = 64 << 20  # of a body that is looked at
_MAX_BODY_BYTES = 512 << 20  # of one that is handed on: it is held whole
_EPOCH_OFFSET = time() - monotonic()


class FixApp:
    """An ASGI application before ours. `ended` gets each exchange of the three APIs."""

    def __init__(
        self,
        app: App,
        endpoint: Endpoint,
        on_exchange: Callable[[CapturedExchange], None],
        on_fallback: Callable[[str], None],
    ) -> None:
        self._app = app
        self._endpoint = endpoint
        self._on_exchange = on_exchange
        self._on_fallback = on_fallback
        self._numbers = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await _read_body(receive)
        if body is None:
            return  # the client has hung up
        if len(body) > _MAX_BODY_BYTES:
            await send_error(413, "the body is too large for --fix", send)
            return
        target = scope["path"]
        if find_codec(scope["method"], target) is None:
            await forward_request(self._endpoint, scope, body, send)
            return
        taking = _ResponseCapture(scope, body, send)
        try:
            await self._respond(scope, body, receive, taking)
        finally:
            self._on_exchange(taking.to_exchange(next(self._numbers)))

    async def _respond(
        self, scope: Scope, body: bytes, receive: Receive, taking: "_ResponseCapture"
    ) -> None:
        gate = _RefusalFilter(taking.send)
        taking.server = "dovetail"
        if len(body) > _MAX_OBSERVED_BYTES:
            gate.refusal = "the body is too large"
        else:
            # Written to the connection directly, an answer would not pass through here.
            await self._app({**scope, "extensions": {}}, _replay_body(body, receive), gate.send)
        if gate.refusal is not None:
            taking.server = "upstream"
            self._on_fallback(gate.refusal)
            await forward_request(self._endpoint, scope, body, taking.send)


class _RefusalFilter:
    """Lets an answer through, unless it is a refusal: that one is kept.

    A prompt that is too long is too long for the server as well, and clients know what to do about
    it by our words: that is no reason to ask somebody else.
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
        """The refusal is complete."""
        start, *pieces = self._buffered
        body = b"".join(piece.get("body", b"") for piece in pieces)
        if any(mark in body for mark in _OVERFLOW_MARKERS):
            self.refusal = None
            for message in self._buffered:
                await self._send(message)
        else:
            self.refusal = _refusal_reason(start["status"], body)


class _ResponseCapture:
    """An answer on its way to the client, with its times."""

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
            asked=0.0,
            ended=monotonic() - self._began,
            status=self._status,
            request_headers=headers,
            answer_headers=self._headers,
            request=_decode_content(self._body, headers.pop("content-encoding", "")),
            answer=b"".join(self._parts),
            marks=tuple(self._marks),
            cut=not self._complete,
            server=self.server,
        )


def _decode_content(body: bytes, coding: str) -> bytes:
    try:
        return decode_content(body, coding, _MAX_OBSERVED_BYTES)
    except ClientError:
        return body


async def _read_body(receive: Receive) -> bytes | None:
    """The body, as far as it is needed to see that it is too large; None after a hang-up."""
    parts: list[bytes] = []
    size = 0
    while size <= _MAX_BODY_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body", False):
            break
    return b"".join(parts)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """The body once more, then what the client does next."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _refusal_reason(status: int, body: bytes) -> str:
    """Why our application refused, as short as possible."""
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return str(status)
    return f"{status}: {message[:100]}"
