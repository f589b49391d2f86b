"""`dovetail catalog`: print the model catalog in the file format of a harness."""

import json
from dataclasses import replace
from typing import Annotated, Any

import typer

from dovetail.cli.errors import fail
from dovetail.cli.flags import with_settings
from dovetail.engines.registry import EngineSetupError
from dovetail.http.codex_catalog import (
    CodexProfileError,
    apply_profile,
    build_catalog,
    read_profile,
    read_profiles,
)
from dovetail.launch.plan import LaunchError
from dovetail.launch.server_info import fetch_server_info
from dovetail.models.loader import ModelLoadError
from dovetail.models.weights import ModelUnavailableError
from dovetail.server.build import build_service
from dovetail.settings.config import Config
from dovetail.settings.sources import LoadedConfig
from dovetail_model import DovetailError

HARNESS = "codex"
Json = dict[str, Any]


@with_settings
def catalog(
    settings: LoadedConfig,
    harness: Annotated[
        str, typer.Argument(metavar=HARNESS, help="The harness that reads the catalog.")
    ],
    url: Annotated[
        str | None,
        typer.Option(help="A running Dovetail server to query, instead of MODEL and settings."),
    ] = None,
) -> None:
    """Print the model catalog for Codex.

    Example: `dovetail catalog codex --url URL > catalog.json`. Codex reads the file that its
    setting model_catalog_json names. With --url the catalog lists the models of a running server;
    pass its key with --api-key. Otherwise it lists the models that `dovetail serve` would serve
    with the same arguments; no engine is started.
    """
    if harness != HARNESS:
        raise typer.BadParameter(f"there is no catalog format for {harness!r}, only for {HARNESS}")
    try:
        catalog_json = (
            _fetch_catalog(url, settings.config) if url else _build_catalog(settings.config)
        )
    except (
        LaunchError,
        CodexProfileError,
        ModelLoadError,
        EngineSetupError,
        ModelUnavailableError,
    ) as error:
        fail("catalog", str(error))
    except (DovetailError, ValueError, OSError) as error:
        fail("catalog", str(error))
    typer.echo(json.dumps(catalog_json, ensure_ascii=False, indent=1))


def _fetch_catalog(url: str, config: Config) -> Json:
    """Fetch the catalog from a running server.

    The Codex profile is read on this machine, not on the server's.
    """
    server = fetch_server_info(url, config.api_key[0] if config.api_key else None)
    if server.catalog is None:
        raise LaunchError(
            f"the server at {server.address} has no model catalog; update it to a newer Dovetail"
        )
    if config.codex_profile is None:
        return dict(server.catalog)
    profile = read_profile(config.codex_profile)
    return {"models": [apply_profile(entry, profile) for entry in server.catalog["models"]]}


def _build_catalog(config: Config) -> Json:
    """Build the catalog that a server with these settings would return.

    The server's ledger stays untouched.
    """
    if config.codex_profile is not None:
        read_profile(config.codex_profile)  # an unknown profile is an error before any download
    registry = build_service(replace(config, store="memory"))
    profiles = read_profiles(entry.codex_profile for entry in registry.entries)
    return build_catalog(registry.iter_entries(), profiles)
