"""Dovetail before the endpoint, in this process, as `dovetail serve` would be."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from dovetail.eval.target import EvalError, EvalTarget
from dovetail.http.app import App
from dovetail.net.exchange import Message, Receive, Scope, Send
from dovetail.net.http_client import Endpoint
from dovetail.server.build import build_service
from dovetail.server.http_server import create_server, run_server, wait_until_started
from dovetail.settings.config import Config
from dovetail.watch.exchange import CapturedExchange
from dovetail.watch.observer import TrafficObserver
from dovetail.watch.relay import TcpRelay


@asynccontextmanager
async def run_dovetail(
    target: EvalTarget,
) -> AsyncIterator[tuple[Endpoint, list[CapturedExchange]]]:
    """A Dovetail before the endpoint, and what it says to it while the block runs.

    That is listened to where both speak in messages: what the endpoint's prompts are is found out
    the same way as without Dovetail then. Where it speaks in tokens it knows them itself.
    """
    heard: list[CapturedExchange] = []
    tee = TrafficObserver(heard.append)
    relay = TcpRelay(target.endpoint, tee.observe)
    address = str(target.endpoint)
    if target.engine == "openai":
        tee.start()
        address = await relay.listen("127.0.0.1", 0) + target.endpoint.base
    try:
        with TemporaryDirectory(prefix="dovetail-accept-") as folder:
            # Not on this loop: the server is asked while it is built, and the relay is in between.
            service = await asyncio.to_thread(
                build_service, _build_config(target, address, Path(folder))
            )
            async with _serve_app(App(service), target) as endpoint:
                yield endpoint, heard
    finally:
        if target.engine == "openai":
            await relay.close()
            await asyncio.to_thread(tee.close)


def _build_config(subject: EvalTarget, address: str, folder: Path) -> Config:
    wish = subject.options
    return Config(
        model=subject.model,
        engine=subject.engine,
        engine_url=(address,),
        engine_api_key=(wish.api_key or "").strip() or None,
        tokenizer=subject.reference.origin if subject.reference.has_tokenizer else wish.tokenizer,
        tool_call_parser=wish.parsers.tool_parser,
        reasoning_parser=wish.parsers.reasoning_parser,
        data_dir=folder,
        store="memory",
    )


class _StartupMonitor:
    """The application, and why it could not be started if so."""

    __slots__ = ("_app", "failure")

    def __init__(self, app: App) -> None:
        self._app = app
        self.failure = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def heard(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                self.failure = message["message"]
            await send(message)

        await self._app(scope, receive, heard)


@asynccontextmanager
async def _serve_app(app: App, subject: EvalTarget) -> AsyncIterator[Endpoint]:
    """The application on a free port. Signals are for the whole run, not for the server."""
    listening = socket.create_server(("127.0.0.1", 0))
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    starting = _StartupMonitor(app)
    running = create_server(starting)
    task = asyncio.create_task(run_server(running, [listening]))
    try:
        await asyncio.sleep(0)  # it has begun then, and has taken the signals
        for each, handler in handlers.items():
            signal.signal(each, handler)
        if not await wait_until_started(running, task):
            why = starting.failure or "no reason is given"
            raise EvalError(f"Dovetail cannot start before {subject.endpoint}: {why}")
        yield Endpoint("127.0.0.1", listening.getsockname()[1])
    finally:
        running.should_exit = True
        if not running.started:
            task.cancel()
        await asyncio.wait({task})
        listening.close()
