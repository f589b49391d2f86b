"""Dovetail before the endpoint, in this process, as `dovetail serve` would be."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from dovetail.eval.target import AcceptError, Subject
from dovetail.http.app import App
from dovetail.net.asgi import Message, Receive, Scope, Send
from dovetail.net.http_client import Endpoint
from dovetail.server.build import build_service
from dovetail.server.http_server import run_server, create_server, wait_until_started
from dovetail.settings.config import Config
from dovetail.watch.exchange import CapturedExchange
from dovetail.watch.observer import TrafficObserver
from dovetail.watch.relay import TcpRelay


@asynccontextmanager
async def fronted(subject: Subject) -> AsyncIterator[tuple[Endpoint, list[CapturedExchange]]]:
    """A Dovetail before the endpoint, and what it says to it while the block runs.

    That is listened to where both speak in messages: what the endpoint's prompts are is found out
    the same way as without Dovetail then. Where it speaks in tokens it knows them itself.
    """
    heard: list[CapturedExchange] = []
    tee = TrafficObserver(heard.append)
    relay = TcpRelay(subject.endpoint, tee.observe)
    address = str(subject.endpoint)
    if subject.engine == "openai":
        tee.start()
        address = await relay.listen("127.0.0.1", 0) + subject.endpoint.base
    try:
        with TemporaryDirectory(prefix="dovetail-accept-") as folder:
            # Not on this loop: the server is asked while it is built, and the relay is in between.
            service = await asyncio.to_thread(build_service, _config(subject, address, Path(folder)))
            async with _serving(App(service), subject) as endpoint:
                yield endpoint, heard
    finally:
        if subject.engine == "openai":
            await relay.close()
            await asyncio.to_thread(tee.close)


def _config(subject: Subject, address: str, folder: Path) -> Config:
    wish = subject.wish
    return Config(
        model=subject.model,
        engine=subject.engine,
        engine_url=(address,),
        engine_api_key=(wish.key or "").strip() or None,
        tokenizer=subject.lens.origin if subject.lens.has_tokenizer else wish.tokenizer,
        tool_call_parser=wish.notation.tool_parser,
        reasoning_parser=wish.notation.reasoning_parser,
        data_dir=folder,
        store="memory",
    )


class _Starting:
    """The application, and why it could not be started if so."""

    __slots__ = ("_app", "why")

    def __init__(self, app: App) -> None:
        self._app = app
        self.why = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def heard(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                self.why = message["message"]
            await send(message)

        await self._app(scope, receive, heard)


@asynccontextmanager
async def _serving(app: App, subject: Subject) -> AsyncIterator[Endpoint]:
    """The application on a free port. Signals are for the whole run, not for the server."""
    listening = socket.create_server(("127.0.0.1", 0))
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    starting = _Starting(app)
    running = create_server(starting)
    task = asyncio.create_task(run_server(running, [listening]))
    try:
        await asyncio.sleep(0)  # it has begun then, and has taken the signals
        for each, handler in handlers.items():
            signal.signal(each, handler)
        if not await wait_until_started(running, task):
            why = starting.why or "no reason is given"
            raise AcceptError(f"Dovetail cannot start before {subject.endpoint}: {why}")
        yield Endpoint("127.0.0.1", listening.getsockname()[1])
    finally:
        running.should_exit = True
        if not running.started:
            task.cancel()
        await asyncio.wait({task})
        listening.close()
