"""Our server with one fault at a time: an ASGI layer that spoils requests or answers."""

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

LINGER = 1.3  # seconds that a lingering server keeps a stream open
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
Json = Any


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

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
class Told:
    """An answer before it is sent."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def streamed(self) -> bool:
        return "event-stream" in self.headers.get("content-type", "")


@dataclass(frozen=True)
class Fault:
    """What is done to a request, or to its answer. `refuse` answers in place of the server.

    `linger` keeps streams open, `deaf` does not notice that a client is gone, `delay` are seconds
    before anything is done.
    """

    ask: Callable[[Asked], Asked] | None = None
    refuse: Callable[[Asked], Told | None] | None = None
    tell: Callable[[Asked, Told], Told] | None = None
    linger: bool = False
    deaf: bool = False
    delay: Callable[[Asked], float] = lambda asked: 0.0


class Faulty:
    """The layer. Without a fault it hands everything on."""

    def __init__(self, app: Asgi) -> None:
        self._app = app
        self.fault: Fault | None = None
        self.closed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = self.fault
        if scope["type"] != "http" or fault is None:
            await self._app(scope, receive, send)
            return
        asked = await _asked(scope, receive)
        await asyncio.sleep(fault.delay(asked))
        told = fault.refuse(asked) if fault.refuse else None
        if told is None:
            asked = fault.ask(asked) if fault.ask else asked
            if fault.deaf:
                await self._app(_scope(scope, asked), self._deaf(asked), send)
                return
            told = await self._answer(scope, asked)
            told = fault.tell(asked, told) if fault.tell else told
        await _send(told, send, linger=fault.linger and told.streamed)

    async def _answer(self, scope: Scope, asked: Asked) -> Told:
        """The server's own answer, collected."""
        status, headers, body = 0, dict[str, str](), b""

        async def collect(message: Message) -> None:
            nonlocal status, headers, body
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {n.decode().lower(): v.decode() for n, v in message["headers"]}
            else:
                body += message.get("body", b"")

        await self._app(_scope(scope, asked), self._deaf(asked), collect)
        return Told(status, headers, body)

    def _deaf(self, asked: Asked) -> Receive:
        """Gives the body once, and does not tell that the client is gone until the very end."""
        given = False

        async def receive() -> Message:
            nonlocal given
            while given and not self.closed:  # noqa: ASYNC110 - set by another thread
                await asyncio.sleep(0.05)
            if given:
                return {"type": "http.disconnect"}
            given = True
            return {"type": "http.request", "body": asked.body, "more_body": False}

        return receive


async def _asked(scope: Scope, receive: Receive) -> Asked:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    query = scope.get("query_string", b"").decode()
    path = scope["raw_path"].decode() + (f"?{query}" if query else "")
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    return Asked(scope["method"], path, headers, body)


def _scope(scope: Scope, asked: Asked) -> Scope:
    headers = {**asked.headers, "content-length": str(len(asked.body))}
    lines = [(n.encode(), v.encode()) for n, v in headers.items()]
    return {**scope, "headers": lines, "extensions": {}}  # all of it is to pass through here


async def _send(told: Told, send: Send, *, linger: bool) -> None:
    headers = {n: v for n, v in told.headers.items() if n != "content-length"}
    if not told.streamed:
        headers["content-length"] = str(len(told.body))
    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": told.status, "headers": lines})
    await send({"type": "http.response.body", "body": told.body, "more_body": True})
    if linger:
        await asyncio.sleep(LINGER)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


# What can be wrong.


def swap(old: str, new: str, *, where: str = "", streamed: bool | None = None) -> Fault:
    """Text of answers is another: of those whose path contains `where`, streamed or whole."""
    pattern = re.compile(old.encode())

    def tell(asked: Asked, told: Told) -> Told:
        fits = where in asked.path and streamed in (None, told.streamed)
        return replace(told, body=pattern.sub(new.encode(), told.body)) if fits else told

    return Fault(tell=tell)


def frames(change: Callable[[list[str]], list[str]]) -> Fault:
    """The events of a stream are others."""

    def tell(asked: Asked, told: Told) -> Told:
        if not told.streamed:
            return told
        found = [frame for frame in told.body.decode().split("\n\n") if frame]
        return replace(told, body="".join(f"{f}\n\n" for f in change(found)).encode())

    return Fault(tell=tell)


def without(word: str) -> Fault:
    """Events with a word in them are missing."""
    return frames(lambda found: [frame for frame in found if word not in frame])


def twice(word: str) -> Fault:
    """Events with a word in them come twice."""
    return frames(lambda found: [f for frame in found for f in [frame] * (1 + (word in frame))])


def changed(change: Callable[[Asked, Json], None], where: str = "") -> Fault:
    """The JSON of whole answers is another."""

    def tell(asked: Asked, told: Told) -> Told:
        if told.streamed or told.status != 200 or where not in asked.path or not told.body:
            return told
        value = json.loads(told.body)
        change(asked, value)
        return replace(told, body=json.dumps(value, ensure_ascii=False).encode())

    return Fault(tell=tell)


def refusing(pattern: str, status: int = 400) -> Fault:
    """Requests with something in their body are refused."""
    return Fault(refuse=lambda asked: answer(status) if re.search(pattern, _text(asked)) else None)


def turned_away(
    when: Callable[[Asked], bool], status: int, body: str = "{}", kind: str = "application/json"
) -> Fault:
    """Requests get an answer that is not the server's."""
    return Fault(refuse=lambda asked: answer(status, body, kind) if when(asked) else None)


def forgetting(*fields: str) -> Fault:
    """Fields of requests are not read."""

    def ask(asked: Asked) -> Asked:
        kept = {name: value for name, value in asked.json.items() if name not in fields}
        return replace(asked, body=json.dumps(kept).encode()) if asked.body else asked

    return Fault(ask=ask)


def spoiled_errors(change: Callable[[Told], Told]) -> Fault:
    """Refusals are others."""
    return Fault(tell=lambda asked, told: change(told) if told.status >= 400 else told)


def headed(name: str, value: str) -> Fault:
    """Answers have a header."""
    return Fault(tell=lambda asked, told: replace(told, headers={**told.headers, name: value}))


def answer(status: int, body: str = "", kind: str = "application/json") -> Told:
    error = '{"type":"error","error":{"type":"invalid_request_error","message":"no"}}'
    return Told(status, {"content-type": kind}, (body or error).encode())


def _text(asked: Asked) -> str:
    return asked.body.decode("utf-8", "replace")


@dataclass(frozen=True)
class Play:
    """A running server, and the layer that spoils it."""

    url: str
    model: str
    layer: Faulty


@contextmanager
def faulty_server(folder: Path) -> Iterator[Play]:
    """Our own server with the layer over it, in a thread."""
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
    layer = Faulty(App(build_service(config)))
    running = create_server(layer, "127.0.0.1", 0)
    running.config.log_config = None
    thread = Thread(target=running.run, daemon=True)
    thread.start()
    try:
        while not running.started:
            thread.join(0.02)
            assert thread.is_alive(), "the server did not start"
        port = running.servers[0].sockets[0].getsockname()[1]
        yield Play(f"http://127.0.0.1:{port}", own.model, layer)
    finally:
        layer.closed = running.should_exit = True
        thread.join(30)
