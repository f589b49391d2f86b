"""`dovetail launch`: a harness on a model of your own, in one command."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from dovetail.cli.flags import with_settings
from dovetail.http.codex_catalog import CodexProfileError
from dovetail.launch.harnesses import HARNESSES, harness_of
from dovetail.launch.own_server import arguments_of, port_of, secrets_of, window_of_built_in
from dovetail.launch.plan import Harness, LaunchError, Order, Plan, Target
from dovetail.launch.runner import (
    environment_of,
    executable_of,
    past_proxies,
    replace_process,
    run,
)
from dovetail.launch.server_info import Server, ask, find
from dovetail.launch.server_process import serving
from dovetail.launch.shell import shell_lines
from dovetail.settings.installation import default_data_dir
from dovetail.settings.sources import LoadedConfig

USUAL_PORTS = (8000, 8001)
#: Settings that are of use with a server that runs already.
_OF_ANY_SERVER = frozenset({"api_key", "codex_profile", "data_dir"})


# Agents are run in folders that come from anywhere: what lies there must not say where prompts go.
@partial(with_settings, here=False)
def launch(  # noqa: PLR0913 - each is a flag
    settings: LoadedConfig,
    harness: Annotated[
        str | None, typer.Argument(metavar="HARNESS", help=f"what to run: {', '.join(HARNESSES)}")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="arguments of the harness")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="the Dovetail server to use (default: one on this machine)")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="the model to use: one that the server serves, else one to be served"),
    ] = None,
    api: Annotated[
        str | None, typer.Option(help="the API to speak, for a harness that knows several")
    ] = None,
    printed: Annotated[
        bool, typer.Option("--print", help="run nothing: print what would be set and run")
    ] = False,
) -> None:
    """Run a coding agent on a model that Dovetail serves.

    Uses the server at --url, else one that runs on this machine, else starts one for the time of
    the run with the settings of `dovetail serve`. Your own files are left alone; arguments of the
    agent stand behind --.
    """
    try:
        known = harness_of(harness)
        chosen = _api(known, api)
        executable = known.executable if printed else executable_of(known)
        data = settings.config.data_dir or default_data_dir()
        folder = data.expanduser().absolute() / "launch" / known.name
        wish = _Wish(known, url, model, printed)
        with _server(wish, settings, folder) as use:
            target = use.target
            _check_window(known, target.model, target.context_length)
            past = past_proxies(target.address, os.environ)
            order = Order(target, chosen, tuple(arguments or ()), executable, folder, past)
            status = _carry_out(known.prepare(order), use, printed)
    except (LaunchError, CodexProfileError, OSError) as error:  # the last: what is no program
        _fail(str(error))
    raise typer.Exit(status)


@dataclass(frozen=True)
class _Wish:
    """Which server and model were asked for, and for what."""

    harness: Harness
    url: str | None
    model: str | None
    printed: bool


@dataclass(frozen=True)
class _Use:
    """What is used, and whether the server is there for us alone."""

    target: Target
    ours: bool


@contextmanager
def _server(wish: _Wish, settings: LoadedConfig, folder: Path) -> Iterator[_Use]:
    """The server of the address, or one that is found, or one that is started."""
    key = next(iter(settings.config.api_key), None)
    for_a_server = _asked_of_a_server(settings)
    if wish.url is not None:
        if for_a_server:
            raise LaunchError(f"{for_a_server} is for a server to be started, not beside --url")
        yield _running(ask(wish.url, key), wish, settings)
        return
    found, others = (None, []) if for_a_server else find(_places(settings), key)
    if found is not None and (wish.model is None or found.serves(wish.model)):
        _tell(f"using the server at {found.address}")
        yield _running(found, wish, settings)
        return
    if found is not None and wish.model is not None:
        _tell(found.lack_of(wish.model))
    built_in = window_of_built_in(settings.config, wish.model)
    if built_in is not None:
        for other in others:  # it is a better engine than what comes with us
            _tell(other)
        _check_window(wish.harness, *built_in)  # before it is fetched
    arguments = arguments_of(settings, wish.model)
    if wish.printed:
        shown = " ".join(map(shlex.quote, arguments))
        raise LaunchError(f"no server runs whose settings could be shown: dovetail serve {shown}")
    log = folder / "server.log"
    _tell(f"starting a server (log: {log})")
    with serving([*arguments, *port_of(settings)], secrets_of(settings), log) as child:
        named = wish.model if settings.config.models else None
        yield _Use(ask(child.address, key).target(named), ours=True)
        if not child.alive:
            _tell(f"the server ended before the harness did\n{child.last_words()}")


def _running(server: Server, wish: _Wish, settings: LoadedConfig) -> _Use:
    profile = settings.config.codex_profile
    if profile is not None:
        server = server.under_profile(profile)
    return _Use(server.target(wish.model), ours=False)


def _asked_of_a_server(settings: LoadedConfig) -> str | None:
    """A flag that only makes sense for a server to be started."""
    for name, origin in settings.origins.items():
        if origin == "flag" and name not in _OF_ANY_SERVER:
            return f"--{name.replace('_', '-')}"
    return None


def _places(settings: LoadedConfig) -> list[str]:
    port = settings.config.http_port
    return [f"http://127.0.0.1:{one}" for one in ((port,) if port else USUAL_PORTS)]


def _carry_out(plan: Plan, use: _Use, printed: bool) -> int:
    target = use.target
    if printed:
        for line in shell_lines(plan, target.key):
            typer.echo(line)
        return 0
    environment = environment_of(plan, os.environ)
    return run(plan, environment) if use.ours else replace_process(plan, environment)


def _api(harness: Harness, named: str | None) -> str:
    if named is None or named in harness.apis:
        return named or harness.apis[0]
    raise LaunchError(f"{harness.title} speaks {', '.join(harness.apis)}, not {named!r}")


def _check_window(harness: Harness, model: str, window: int | None) -> None:
    least = harness.least_window
    if window is None or window >= least:
        return
    raise LaunchError(
        f"{harness.title} does not fit into the window of {model!r}: it needs {least:,} tokens for "
        f"its own prompt and room to work, and there are {window:,}. Serve a model with a longer "
        "window (--model, or --engine vllm --engine-url URL), or raise --context-length where this "
        "one has more"
    )


def _tell(message: str) -> None:
    typer.echo(f"dovetail launch: {message}", err=True)


def _fail(message: str) -> NoReturn:
    _tell(message)
    raise typer.Exit(1)
