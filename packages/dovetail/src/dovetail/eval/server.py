"""Run Dovetail in front of the endpoint, in this process, like `dovetail serve`."""

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
    """Run Dovetail in front of the endpoint. Yields its address and its captured exchanges.

    Exchanges are captured if Dovetail forwards messages to the endpoint: the endpoint's prompts are
    then reconstructed as in the pass without Dovetail. With token prompts, Dovetail builds and
    reports the prompts itself.
    """
    captured: list[CapturedExchange] = []
    observer = TrafficObserver(captured.append)
    relay = TcpRelay(target.endpoint, observer.observe)
    address = str(target.endpoint)
    if target.engine == "openai":
        observer.start()
        address = await relay.listen("127.0.0.1", 0) + target.endpoint.base
    try:
        with TemporaryDirectory(prefix="dovetail-accept-") as folder:
            # In a thread: building queries the server through the relay, which needs this loop.
            service = await asyncio.to_thread(
                build_service, _build_config(target, address, Path(folder))
            )
            async with _serve_app(App(service), target) as endpoint:
                yield endpoint, captured
    finally:
        if target.engine == "openai":
            await relay.close()
            await asyncio.to_thread(observer.close)


def _build_config(target: EvalTarget, address: str, folder: Path) -> Config:
    options = target.options
    return Config(
        model=target.model,
        engine=target.engine,
        engine_url=(address,),
        engine_api_key=(options.api_key or "").strip() or None,
        tokenizer=target.reference.origin if target.reference.has_tokenizer else options.tokenizer,
        tool_call_parser=options.parsers.tool_parser,
        reasoning_parser=options.parsers.reasoning_parser,
        data_dir=folder,
        store="memory",
    )


class _StartupMonitor:
    """The application, and why it failed to start."""

    __slots__ = ("_app", "failure")

    def __init__(self, app: App) -> None:
        self._app = app
        self.failure = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def monitor(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                self.failure = message["message"]
            await send(message)

        await self._app(scope, receive, monitor)


@asynccontextmanager
async def _serve_app(app: App, target: EvalTarget) -> AsyncIterator[Endpoint]:
    """Serve the application on a free port. The run's own signal handlers stay installed."""
    listener = socket.create_server(("127.0.0.1", 0))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monitor = _StartupMonitor(app)
    server = create_server(monitor)
    task = asyncio.create_task(run_server(server, [listener]))
    try:
        await asyncio.sleep(0)  # the task has started and installed its signal handlers
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if not await wait_until_started(server, task):
            reason = monitor.failure or "unknown error"
            raise EvalError(f"Dovetail cannot start in front of {target.endpoint}: {reason}")
        yield Endpoint("127.0.0.1", listener.getsockname()[1])
    finally:
        server.should_exit = True
        if not server.started:
            task.cancel()
        await asyncio.wait({task})
        listener.close()
