"""Dovetail with one fault at a time: an ASGI layer that changes requests or responses."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Any

from dovetail.http.app import App
from dovetail.launch.scripted_server import prepare_scripted_server
from dovetail.net.exchange import Message, Receive, Scope, Send
from dovetail.server.build import build_service
from dovetail.server.http_server import create_server
from dovetail.settings.config import Config

LINGER = 1.3  # seconds for which a stream stays open after its last event
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
Json = Any


@dataclass(frozen=True)
class AsgiRequest:
    """A request as it was received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        try:
            return json.loads(self.body)
        except ValueError:
            return {}


@dataclass(frozen=True)
class AsgiResponse:
    """A response before it is sent."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def streamed(self) -> bool:
        return "event-stream" in self.headers.get("content-type", "")


@dataclass(frozen=True)
class Fault:
    """A fault that the layer adds to the server.

    `respond` responds in place of the server. `change_request` and `change_response` change the
    messages that pass through. `linger` keeps streams open. `ignore_disconnect` hides client
    disconnects from the server. `delay` returns the seconds to wait before a request is handled.
    """

    change_request: Callable[[AsgiRequest], AsgiRequest] | None = None
    respond: Callable[[AsgiRequest], AsgiResponse | None] | None = None
    change_response: Callable[[AsgiRequest, AsgiResponse], AsgiResponse] | None = None
    linger: bool = False
    ignore_disconnect: bool = False
    delay: Callable[[AsgiRequest], float] = lambda request: 0.0


class FaultLayer:
    """The ASGI layer. Without a fault it forwards all messages unchanged."""

    def __init__(self, app: Asgi) -> None:
        self._app = app
        self.fault: Fault | None = None
        self.closed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = self.fault
        if scope["type"] != "http" or fault is None:
            await self._app(scope, receive, send)
            return
        request = await _read_request(scope, receive)
        await asyncio.sleep(fault.delay(request))
        response = fault.respond(request) if fault.respond else None
        if response is None:
            request = fault.change_request(request) if fault.change_request else request
            if fault.ignore_disconnect:
                await self._app(_scope(scope, request), self._receive_body(request), send)
                return
            response = await self._respond(scope, request)
            response = (
                fault.change_response(request, response) if fault.change_response else response
            )
        await _send(response, send, linger=fault.linger and response.streamed)

    async def _respond(self, scope: Scope, request: AsgiRequest) -> AsgiResponse:
        """Return the complete response of the server."""
        status, headers, body = 0, dict[str, str](), b""

        async def collect(message: Message) -> None:
            nonlocal status, headers, body
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {n.decode().lower(): v.decode() for n, v in message["headers"]}
            else:
                body += message.get("body", b"")

        await self._app(_scope(scope, request), self._receive_body(request), collect)
        return AsgiResponse(status, headers, body)

    def _receive_body(self, request: AsgiRequest) -> Receive:
        """Return a `receive` that hides the disconnect of the client until the layer is closed."""
        given = False

        async def receive() -> Message:
            nonlocal given
            while given and not self.closed:  # noqa: ASYNC110 - set by another thread
                await asyncio.sleep(0.05)
            if given:
                return {"type": "http.disconnect"}
            given = True
            return {"type": "http.request", "body": request.body, "more_body": False}

        return receive


async def _read_request(scope: Scope, receive: Receive) -> AsgiRequest:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    query = scope.get("query_string", b"").decode()
    path = scope["raw_path"].decode() + (f"?{query}" if query else "")
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    return AsgiRequest(scope["method"], path, headers, body)


def _scope(scope: Scope, request: AsgiRequest) -> Scope:
    headers = {**request.headers, "content-length": str(len(request.body))}
    lines = [(n.encode(), v.encode()) for n, v in headers.items()]
    return {**scope, "headers": lines, "extensions": {}}  # without extensions that bypass the layer


async def _send(response: AsgiResponse, send: Send, *, linger: bool) -> None:
    headers = {n: v for n, v in response.headers.items() if n != "content-length"}
    if not response.streamed:
        headers["content-length"] = str(len(response.body))
    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": lines})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    if linger:
        await asyncio.sleep(LINGER)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


# Faults.


def replace_text(old: str, new: str, *, where: str = "", streamed: bool | None = None) -> Fault:
    """Replace text in responses whose path contains `where`, streaming or not."""
    pattern = re.compile(old.encode())

    def change_response(request: AsgiRequest, response: AsgiResponse) -> AsgiResponse:
        fits = where in request.path and streamed in (None, response.streamed)
        return (
            replace(response, body=pattern.sub(new.encode(), response.body)) if fits else response
        )

    return Fault(change_response=change_response)


def change_frames(change: Callable[[list[str]], list[str]]) -> Fault:
    """Change the events of streams."""

    def change_response(request: AsgiRequest, response: AsgiResponse) -> AsgiResponse:
        if not response.streamed:
            return response
        found = [frame for frame in response.body.decode().split("\n\n") if frame]
        return replace(response, body="".join(f"{f}\n\n" for f in change(found)).encode())

    return Fault(change_response=change_response)


def without_events(word: str) -> Fault:
    """Remove events that contain a word."""
    return change_frames(lambda found: [frame for frame in found if word not in frame])


def repeat_events(word: str) -> Fault:
    """Send events that contain a word twice."""
    return change_frames(
        lambda found: [f for frame in found for f in [frame] * (1 + (word in frame))]
    )


def change_body(change: Callable[[AsgiRequest, Json], None], where: str = "") -> Fault:
    """Change the JSON of non-streaming responses."""

    def change_response(request: AsgiRequest, response: AsgiResponse) -> AsgiResponse:
        if (
            response.streamed
            or response.status != 200
            or where not in request.path
            or not response.body
        ):
            return response
        value = json.loads(response.body)
        change(request, value)
        return replace(response, body=json.dumps(value, ensure_ascii=False).encode())

    return Fault(change_response=change_response)


def refuse_matching(pattern: str, status: int = 400) -> Fault:
    """Reject requests whose body matches a pattern."""
    return Fault(
        respond=lambda request: (
            make_response(status) if re.search(pattern, _text(request)) else None
        )
    )


def respond_when(
    when: Callable[[AsgiRequest], bool],
    status: int,
    body: str = "{}",
    kind: str = "application/json",
) -> Fault:
    """Respond to some requests in place of the server."""
    return Fault(
        respond=lambda request: make_response(status, body, kind) if when(request) else None
    )


def without_fields(*fields: str) -> Fault:
    """Remove fields from requests."""

    def change_request(request: AsgiRequest) -> AsgiRequest:
        rest = {name: value for name, value in request.json.items() if name not in fields}
        return replace(request, body=json.dumps(rest).encode()) if request.body else request

    return Fault(change_request=change_request)


def change_errors(change: Callable[[AsgiResponse], AsgiResponse]) -> Fault:
    """Change error responses."""
    return Fault(
        change_response=lambda request, response: (
            change(response) if response.status >= 400 else response
        )
    )


def with_header(name: str, value: str) -> Fault:
    """Add a header to responses."""
    return Fault(
        change_response=lambda request, response: replace(
            response, headers={**response.headers, name: value}
        )
    )


def make_response(status: int, body: str = "", kind: str = "application/json") -> AsgiResponse:
    error = '{"type":"error","error":{"type":"invalid_request_error","message":"no"}}'
    return AsgiResponse(status, {"content-type": kind}, (body or error).encode())


def _text(request: AsgiRequest) -> str:
    return request.body.decode("utf-8", "replace")


@dataclass(frozen=True)
class FaultyServer:
    """A running server, and the layer that adds faults to it."""

    url: str
    model: str
    layer: FaultLayer


@contextmanager
def faulty_server(folder: Path) -> Iterator[FaultyServer]:
    """Run Dovetail with the layer in a thread."""
    own = prepare_scripted_server(folder)
    given = dict(zip(own.arguments[1::2], own.arguments[2::2], strict=True))
    config = Config(
        model=own.arguments[0],
        engine="scripted",
        script=Path(given["--script"]),
        served_model_name=(own.model,),
        tool_call_parser=given["--tool-call-parser"],
        reasoning_parser=given["--reasoning-parser"],
        data_dir=folder,
    )
    layer = FaultLayer(App(build_service(config)))
    running = create_server(layer, "127.0.0.1", 0)
    running.config.log_config = None
    thread = Thread(target=running.run, daemon=True)
    thread.start()
    try:
        while not running.started:
            thread.join(0.02)
            assert thread.is_alive(), "the server did not start"
        port = running.servers[0].sockets[0].getsockname()[1]
        yield FaultyServer(f"http://127.0.0.1:{port}", own.model, layer)
    finally:
        layer.closed = running.should_exit = True
        thread.join(30)
