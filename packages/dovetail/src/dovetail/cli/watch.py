"""`dovetail watch`: a passthrough before a running server, and what it finds out."""

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from dovetail.cli.errors import fail
from dovetail.engines.registry import EngineSetupError
from dovetail.http.app import App
from dovetail.models.loader import ModelLoadError
from dovetail.models.weights import ModelUnavailableError, find_model
from dovetail.net.http_client import Endpoint
from dovetail.server.build import build_service
from dovetail.server.http_server import create_server, wait_until_started
from dovetail.settings.config import Config
from dovetail.watch.exchange import RecordingError, read_recording, write_private_file
from dovetail.watch.fix import FixApp
from dovetail.watch.reference_model import (
    ListedModel,
    ParserNames,
    ReferenceModel,
    ReferenceModels,
    fetch_listed_models,
    load_reference,
)
from dovetail.watch.report import create_display
from dovetail.watch.watcher import Watcher, WatchOptions
from dovetail_model import DovetailError

SWITCH_INTERVAL_SECONDS = 0.0005  # seconds that the observer may hold up the relay at a time


def watch(  # noqa: PLR0913 - each is a flag
    url: Annotated[
        str, typer.Argument(help="The server to watch, such as http://127.0.0.1:8000.")
    ] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8001,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Folder, GGUF file or hub id with the model's tokenizer and template. By default "
            "the folder that the server names, or the hub's cache; else tokens are estimated."
        ),
    ] = None,
    tool_call_parser: Annotated[
        str | None, typer.Option(help="How the model writes calls; by default found out.")
    ] = None,
    reasoning_parser: Annotated[
        str | None, typer.Option(help="How the model writes thoughts; by default found out.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Record every exchange in this file, for --replay. It holds the text!"),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Watch nothing: look at a recording instead.")
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Answer through Dovetail; hand on what is uncertain.")
    ] = False,
    engine_api_key: Annotated[
        str | None, typer.Option(help="The key that the server asks for.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the summary into this file, too.")
    ] = None,
) -> None:
    """Watch the traffic to a server that stays as it is.

    Point the client at the address that is printed. Bytes pass unchanged in both directions. For
    each exchange a line says how many prompt tokens the server had to compute again and why; the
    summary comes at the end (Ctrl-C), or at once after a SIGUSR1.
    """
    flags = _WatchFlags(
        url=url,
        listen_address=(host, port),
        tokenizer=tokenizer,
        parsers=ParserNames(tool_call_parser, reasoning_parser),
        record=record,
        key=engine_api_key,
        json_file=json_file,
    )
    try:
        if json_file is not None:
            json_file.touch(0o600)  # to tell now, and not at the end, that it cannot be written
        if replay is not None:
            _run_replay(replay, flags)
        else:
            _run_watch(flags, fix)
    except (ModelLoadError, DovetailError, EngineSetupError, ModelUnavailableError) as error:
        fail("watch", str(error))
    except (OSError, RecordingError, ValueError) as error:
        fail("watch", str(error))


@dataclass(frozen=True)
class _WatchFlags:
    """What was said on the command line."""

    url: str
    listen_address: tuple[str, int]
    tokenizer: str | None
    parsers: ParserNames
    record: Path | None
    key: str | None
    json_file: Path | None

    def reference_model(self) -> ReferenceModel | None:
        """The model that the user named."""
        named = self.tokenizer
        return None if named is None else load_reference(find_model(named), self.parsers)

    def build_config(self) -> Config:
        """The settings of a server that answers in place of the watched one."""
        return Config(
            engine="vllm",
            engine_url=(self.url,),
            engine_api_key=self.key,
            tokenizer=self.tokenizer,
            tool_call_parser=self.parsers.tool_parser,
            reasoning_parser=self.parsers.reasoning_parser,
        )


def _run_watch(flags: _WatchFlags, fix: bool) -> None:
    if not flags.url:
        raise ValueError("the address of a server is needed: dovetail watch http://127.0.0.1:8000")
    endpoint = _parse_endpoint(flags.url, flags.key)
    named = flags.reference_model()
    app = App(build_service(flags.build_config())) if fix else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        listed = runner.run(fetch_listed_models(endpoint))
        lenses = ReferenceModels(named, listed, flags.parsers)
        lens = lenses.get(listed[0].id) if listed else named  # now, while nobody waits
        for note in _startup_notes(listed, lens, lenses.warnings):
            typer.echo(note)
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        options = WatchOptions(record=flags.record)
        watching = Watcher(endpoint, lenses, create_display(Console()), options)
        if app is None:
            runner.run(_run_relay(watching, endpoint.base, flags))
        else:
            runner.run(_run_fix(watching, app, endpoint, flags))


def _startup_notes(
    listed: Sequence[ListedModel], lens: ReferenceModel | None, faults: Sequence[str]
) -> list[str]:
    """What is known of the server, and by what tokens are counted."""
    notes = list(faults)
    if not listed:
        notes.append("the server does not say what it serves, or is not up yet")
    if lens is not None and lens.has_tokenizer:
        return [*notes, f"tokens are counted by {lens.origin}"]
    what = f"{listed[0].id!r}" if listed else "its model"
    return [*notes, f"no tokenizer of {what} here (--tokenizer names one): tokens are estimated"]


def _parse_endpoint(url: str, key: str | None) -> Endpoint:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return Endpoint.parse(url.rstrip("/").removesuffix("/v1"), headers)


async def _run_relay(watching: Watcher, base: str, flags: _WatchFlags) -> None:
    """Passes on and looks until it is told to stop."""
    ended = _install_signal_handlers(watching, flags.json_file)
    address = await watching.relay.listen(*flags.listen_address)
    _print_address(address + base, "watching")
    watching.start()
    await ended.wait()
    await watching.relay.close()
    _finish(watching, flags.json_file)


async def _run_fix(watching: Watcher, app: App, endpoint: Endpoint, flags: _WatchFlags) -> None:
    """Answers through Dovetail until it is told to stop."""
    fixing = FixApp(app, endpoint, watching.observer.add_exchange, watching.count_fallback)
    serving = create_server(fixing, *flags.listen_address, drain=app.draining)
    _install_signal_handlers(
        watching, flags.json_file
    )  # the server raises the one that ends it once more
    watching.start()
    task = asyncio.create_task(serving.serve())
    if await wait_until_started(serving, task):
        name, number = serving.servers[0].sockets[0].getsockname()[:2]
        _print_address(f"http://{name}:{number}", "fixing")
    await task
    _finish(watching, flags.json_file)


def _install_signal_handlers(watching: Watcher, json_file: Path | None) -> asyncio.Event:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        ended.set()
        loop.remove_signal_handler(signal.SIGINT)  # the next one does not wait for the summary

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGUSR1, lambda: _print_report(watching, json_file))
    return ended


def _print_address(address: str, doing: str) -> None:
    typer.echo(f"{doing} at {address}")
    typer.echo(f"  Claude Code: ANTHROPIC_BASE_URL={address}   others: base URL {address}/v1\n")
    sys.stdout.flush()


def _finish(watching: Watcher, json_file: Path | None) -> None:
    watching.close()
    _print_report(watching, json_file)


def _print_report(watching: Watcher, json_file: Path | None) -> None:
    typer.echo(f"\n{watching.format_report()}")
    sys.stdout.flush()
    if json_file is not None:
        write_private_file(json_file, json.dumps(watching.build_report_json(), indent=2) + "\n")


def _run_replay(path: Path, flags: _WatchFlags) -> None:
    """A recording, looked at as if it happened now."""
    lenses = ReferenceModels(flags.reference_model(), parsers=flags.parsers)
    watching = Watcher(Endpoint(), lenses, create_display(Console()))
    for exchange in read_recording(path):
        watching.process(exchange)
    _finish(watching, flags.json_file)
