"""`dovetail watch`: relay to a running server and report on its prefix cache use."""

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

from dovetail.access.browser import BrowserPolicy, is_loopback
from dovetail.cli.errors import fail
from dovetail.engines.registry import EngineSetupError
from dovetail.http.app import App
from dovetail.http.options import HttpOptions
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

SWITCH_INTERVAL_SECONDS = 0.0005  # how long the observer thread may block the relay


def watch(  # noqa: PLR0913 - each is a flag
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Server to watch, such as http://127.0.0.1:8000.")
    ] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 selects a free one.")] = 8001,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Folder, GGUF file or Hugging Face Hub id with the model's tokenizer and chat "
            "template. By default the folder that the server reports, or the Hub cache; without "
            "either, tokens are estimated."
        ),
    ] = None,
    tool_call_parser: Annotated[
        str | None, typer.Option(help="Tool call parser; by default detected from the model.")
    ] = None,
    reasoning_parser: Annotated[
        str | None, typer.Option(help="Reasoning parser; by default detected from the model.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Record every exchange to this file, with its full text, for --replay."),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Analyze this recording instead of live traffic.")
    ] = None,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Serve requests through Dovetail; forward the requests that it does not support.",
        ),
    ] = False,
    engine_api_key: Annotated[str | None, typer.Option(help="API key for the server.")] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="Host name that clients may use besides localhost; * for all."),
    ] = None,
    allowed_origin: Annotated[
        list[str] | None, typer.Option(help="Origin of web pages that may use it; * for all.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the summary to this file, too, as JSON.")
    ] = None,
) -> None:
    """Relay traffic to a server and report on its prefix cache use.

    Point the client at the address that is printed. The server stays unmodified, and bytes are
    relayed unchanged in both directions. One line per exchange reports how many prompt tokens the
    server had to prefill again and why. The summary is printed at the end (Ctrl-C), or at any time
    on SIGUSR1.
    """
    flags = _WatchFlags(
        url=url,
        listen_address=(host, port),
        tokenizer=tokenizer,
        parsers=ParserNames(tool_call_parser, reasoning_parser),
        record=record,
        key=engine_api_key,
        json_file=json_file,
        allowed_hosts=tuple(allowed_host or ()),
        allowed_origins=tuple(allowed_origin or ()),
    )
    try:
        if json_file is not None:
            json_file.touch(0o600)  # if it cannot be written, fail now and not at the end
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
    """The command-line options."""

    url: str
    listen_address: tuple[str, int]
    tokenizer: str | None
    parsers: ParserNames
    record: Path | None
    key: str | None
    json_file: Path | None
    allowed_hosts: tuple[str, ...]
    allowed_origins: tuple[str, ...]

    def browser_policy(self) -> BrowserPolicy:
        exposed = not is_loopback(self.listen_address[0])
        return BrowserPolicy(self.allowed_hosts, self.allowed_origins, exposed=exposed)

    def reference_model(self) -> ReferenceModel | None:
        """Load the model that the user named."""
        name = self.tokenizer
        return None if name is None else load_reference(find_model(name), self.parsers)

    def build_config(self) -> Config:
        """Return the settings of the server that responds in place of the watched one."""
        return Config(
            images="reject",  # forwarded instead: the server may see them
            engine="vllm",
            engine_url=(self.url,),
            engine_api_key=self.key,
            tokenizer=self.tokenizer,
            tool_call_parser=self.parsers.tool_parser,
            reasoning_parser=self.parsers.reasoning_parser,
        )


def _run_watch(flags: _WatchFlags, fix: bool) -> None:
    if not flags.url:
        raise ValueError("URL is missing; example: dovetail watch http://127.0.0.1:8000")
    endpoint = _parse_endpoint(flags.url, flags.key)
    named_model = flags.reference_model()
    policy = flags.browser_policy()
    app = None
    if fix:
        app = App(build_service(flags.build_config()), HttpOptions(browser_policy=policy))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        listed = runner.run(fetch_listed_models(endpoint))
        references = ReferenceModels(named_model, listed, flags.parsers)
        reference = (
            references.get(listed[0].id) if listed else named_model
        )  # load it now, before the first request
        for note in _startup_notes(listed, reference, references.warnings):
            typer.echo(note)
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        options = WatchOptions(record=flags.record, policy=policy)
        watcher = Watcher(endpoint, references, create_display(Console()), options)
        if app is None:
            runner.run(_run_relay(watcher, endpoint.base, flags))
        else:
            runner.run(_run_fix(watcher, app, endpoint, flags))


def _startup_notes(
    listed: Sequence[ListedModel], reference: ReferenceModel | None, warnings: Sequence[str]
) -> list[str]:
    """Return messages about the server and about how tokens are counted."""
    notes = list(warnings)
    if not listed:
        notes.append("the server does not list its models, or is not reachable yet")
    if reference is not None and reference.has_tokenizer:
        return [*notes, f"tokens are counted with the tokenizer of {reference.origin}"]
    model = f"{listed[0].id!r}" if listed else "the served model"
    return [*notes, f"tokens are estimated: no tokenizer found for {model}; set --tokenizer"]


def _parse_endpoint(url: str, key: str | None) -> Endpoint:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return Endpoint.parse(url.rstrip("/").removesuffix("/v1"), headers)


async def _run_relay(watcher: Watcher, base: str, flags: _WatchFlags) -> None:
    """Relay and observe until stopped."""
    ended = _install_signal_handlers(watcher, flags.json_file)
    address = await watcher.relay.listen(*flags.listen_address)
    _print_address(address + base, "watching")
    watcher.start()
    await ended.wait()
    await watcher.relay.close()
    _finish(watcher, flags.json_file)


async def _run_fix(watcher: Watcher, app: App, endpoint: Endpoint, flags: _WatchFlags) -> None:
    """Respond through Dovetail until stopped."""
    fix_app = FixApp(app, endpoint, watcher.observer.add_exchange, watcher.count_fallback)
    server = create_server(fix_app, *flags.listen_address, drain=app.draining)
    _install_signal_handlers(
        watcher, flags.json_file
    )  # at its end, the server raises the signal that stopped it again
    watcher.start()
    task = asyncio.create_task(server.serve())
    if await wait_until_started(server, task):
        name, number = server.servers[0].sockets[0].getsockname()[:2]
        _print_address(f"http://{name}:{number}", "fixing")
    await task
    _finish(watcher, flags.json_file)


def _install_signal_handlers(watcher: Watcher, json_file: Path | None) -> asyncio.Event:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        ended.set()
        loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C exits without the summary

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGUSR1, lambda: _print_report(watcher, json_file))
    return ended


def _print_address(address: str, mode: str) -> None:
    typer.echo(f"{mode} at {address}")
    typer.echo(f"  Claude Code: ANTHROPIC_BASE_URL={address}   others: base URL {address}/v1\n")
    sys.stdout.flush()


def _finish(watcher: Watcher, json_file: Path | None) -> None:
    watcher.close()
    _print_report(watcher, json_file)


def _print_report(watcher: Watcher, json_file: Path | None) -> None:
    typer.echo(f"\n{watcher.format_report()}")
    sys.stdout.flush()
    if json_file is not None:
        write_private_file(json_file, json.dumps(watcher.build_report_json(), indent=2) + "\n")


def _run_replay(path: Path, flags: _WatchFlags) -> None:
    """Analyze a recording as if it were live traffic."""
    references = ReferenceModels(flags.reference_model(), parsers=flags.parsers)
    watcher = Watcher(Endpoint(), references, create_display(Console()))
    for exchange in read_recording(path):
        watcher.process(exchange)
    _finish(watcher, flags.json_file)
