"""`dovetail launch`: run a coding agent on a model that Dovetail serves."""

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
from dovetail.launch.client_version import format_version
from dovetail.launch.harnesses import HARNESSES, get_harness
from dovetail.launch.plan import Harness, LaunchError, LaunchPlan, LaunchRequest, LaunchTarget
from dovetail.launch.runner import (
    build_environment,
    build_proxy_bypass,
    exec_harness,
    find_executable,
    run_harness,
    to_shell_lines,
)
from dovetail.launch.server_info import ServerInfo, fetch_server_info, find_server
from dovetail.launch.server_process import (
    build_port_arguments,
    build_secret_environment,
    build_serve_arguments,
    find_builtin_window,
    start_server,
)
from dovetail.settings.installation import default_data_dir
from dovetail.settings.sources import LoadedConfig

DEFAULT_PORTS = (8000, 8001)
#: Settings that apply to a server that is already running.
_CLIENT_SETTINGS = frozenset({"api_key", "codex_profile", "data_dir"})


# Agents run in untrusted folders: a settings file there must not decide where prompts go.
@partial(with_settings, search_working_dir=False)
def launch(  # noqa: PLR0913 - each is a flag
    settings: LoadedConfig,
    harness: Annotated[
        str | None,
        typer.Argument(metavar="HARNESS", help=f"Coding agent to run: {', '.join(HARNESSES)}."),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- ARGS", help="Arguments to pass to the harness."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Dovetail server to use. By default one that runs on this machine."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model to use. If the running server does not serve it, a new server is started."
        ),
    ] = None,
    small: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Served model for requests outside the conversation: titles, summaries and "
            "permission checks.",
        ),
    ] = None,
    api: Annotated[
        str | None, typer.Option(help="API to use, if the harness supports several.")
    ] = None,
    printed: Annotated[
        bool,
        typer.Option("--print", help="Print the environment and the command instead of running."),
    ] = False,
) -> None:
    """Run a coding agent on a model that Dovetail serves.

    Uses the server at --url, or one that runs on this machine. If there is none, starts one for the
    duration of the run, with the settings of `dovetail serve`. Your own configuration files are not
    modified. Arguments for the agent follow after --.
    """
    try:
        spec = get_harness(harness)
        selected_api = _select_api(spec, api)
        if small is not None and not spec.has_small_model:
            raise LaunchError(f"{spec.title} has no setting for a small model; omit --small")
        executable = spec.executable if printed else find_executable(spec)
        data = settings.config.data_dir or default_data_dir()
        folder = data.expanduser().absolute() / "launch" / spec.name
        wanted = _ServerRequest(spec, executable, url, model, small, printed)
        with _select_server(wanted, settings, folder) as selected:
            target = selected.target
            wanted.check_window(target.model, target.context_length)
            proxy_bypass = build_proxy_bypass(target.address, os.environ)
            request = LaunchRequest(
                target, selected_api, tuple(arguments or ()), executable, folder, proxy_bypass
            )
            status = _execute_plan(spec.prepare_plan(request), selected, printed)
    except (LaunchError, CodexProfileError, OSError) as error:  # OSError: not an executable
        _fail(str(error))
    raise typer.Exit(status)


@dataclass(frozen=True)
class _ServerRequest:
    """The server and models that were requested, and the harness they are for."""

    harness: Harness
    executable: str
    url: str | None
    model: str | None
    small: str | None
    print_only: bool

    def check_window(self, model: str, window: int | None, looked_at: str = "") -> None:
        """Raise LaunchError if the window is too small for the installed version of the harness.

        `looked_at` names URLs without a server.
        """
        needs, version = self.harness.find_needs(self.executable, window)
        title = self.harness.title + (f" {format_version(version)}" if version else "")
        if window is None:
            if needs.assumed_context is not None:
                _print_message(
                    f"the server does not know the context length of {model!r}: {title} assumes "
                    f"{needs.assumed_context:,} tokens. Set --context-length on the server"
                )
            return
        if window >= needs.min_context_tokens:
            return
        raise LaunchError(
            f"the context length of {model!r} is too small for {title}: it needs "
            f"{needs.min_context_tokens:,} tokens for its own prompt (about "
            f"{needs.prompt_tokens:,}) and its work, got {window:,}. Serve a model "
            "with a larger context (--model, or --engine vllm --engine-url URL), or raise "
            "--context-length if the model supports it"
            + (
                f". No Dovetail server responds at {looked_at}; --url uses another"
                if looked_at
                else ""
            )
        )


@dataclass(frozen=True)
class _SelectedServer:
    """The server to use, and whether this run started it."""

    target: LaunchTarget
    is_owned: bool


@contextmanager
def _select_server(
    wanted: _ServerRequest, settings: LoadedConfig, folder: Path
) -> Iterator[_SelectedServer]:
    """Select the server at --url, else a running one, else start one."""
    key = next(iter(settings.config.api_key), None)
    server_flag = _find_server_flag(settings)
    if wanted.url is not None:
        if server_flag:
            raise LaunchError(
                f"{server_flag} cannot be combined with --url: it only applies to a new server"
            )
        yield _use_running_server(fetch_server_info(wanted.url, key), wanted, settings)
        return
    found, others = (None, []) if server_flag else find_server(_candidate_urls(settings), key)
    if found is not None and (wanted.model is None or found.has_model(wanted.model)):
        _print_message(f"using the server at {found.address}")
        yield _use_running_server(found, wanted, settings)
        return
    if found is not None and wanted.model is not None:
        _print_message(found.describe_missing_model(wanted.model))
    built_in = find_builtin_window(settings.config, wanted.model)
    if built_in is not None:
        for other in others:  # likely a better engine than the built-in model
            _print_message(other)
        looked_at = "" if found or server_flag else " or ".join(_candidate_urls(settings))
        wanted.check_window(*built_in, looked_at)  # before it is downloaded
    arguments = build_serve_arguments(settings, wanted.model)
    if wanted.print_only:
        command_line = " ".join(map(shlex.quote, arguments))
        raise LaunchError(
            f"--print needs a running server; start one with: dovetail serve {command_line}"
        )
    log = folder / "server.log"
    _print_message(f"starting a server (log: {log})")
    with start_server(
        [*arguments, *build_port_arguments(settings)], build_secret_environment(settings), log
    ) as child:
        model = wanted.model if settings.config.models else None
        yield _SelectedServer(
            fetch_server_info(child.address, key).select_target(model, wanted.small), is_owned=True
        )
        if not child.is_running:
            _print_message(f"the server exited before the harness\n{child.read_log_tail()}")


def _use_running_server(
    server: ServerInfo, wanted: _ServerRequest, settings: LoadedConfig
) -> _SelectedServer:
    profile = settings.config.codex_profile
    if profile is not None:
        server = server.with_codex_profile(profile)
    return _SelectedServer(server.select_target(wanted.model, wanted.small), is_owned=False)


def _find_server_flag(settings: LoadedConfig) -> str | None:
    """Return a flag that was given and applies only to a new server, or None."""
    for name, origin in settings.origins.items():
        if origin == "flag" and name not in _CLIENT_SETTINGS:
            return f"--{name.replace('_', '-')}"
    return None


def _candidate_urls(settings: LoadedConfig) -> list[str]:
    port = settings.config.http_port
    return [f"http://127.0.0.1:{one}" for one in ((port,) if port else DEFAULT_PORTS)]


def _execute_plan(plan: LaunchPlan, selected: _SelectedServer, printed: bool) -> int:
    target = selected.target
    if printed:
        for line in to_shell_lines(plan, target.key):
            typer.echo(line)
        return 0
    environment = build_environment(plan, os.environ)
    return run_harness(plan, environment) if selected.is_owned else exec_harness(plan, environment)


def _select_api(harness: Harness, name: str | None) -> str:
    if name is None or name in harness.apis:
        return name or harness.apis[0]
    supported = ", ".join(harness.apis)
    raise LaunchError(f"--api must be one of {supported} for {harness.title}, got {name!r}")


def _print_message(message: str) -> None:
    typer.echo(f"dovetail launch: {message}", err=True)


def _fail(message: str) -> NoReturn:
    _print_message(message)
    raise typer.Exit(1)
