"""The endpoint of a profile: a running server, or one that is started for the experiment."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dovetail.compare.profiles import Profile
from dovetail.compare.records import ProfileName
from dovetail.compare.task_set import CompareError
from dovetail.engines.openai.discovery import discover
from dovetail.launch.plan import LaunchError, LaunchTarget
from dovetail.launch.server_info import NotDovetailError, fetch_server_info
from dovetail.launch.server_process import (
    DovetailProcess,
    build_secret_environment,
    build_serve_arguments,
    start_server,
)
from dovetail.net.http_client import Endpoint
from dovetail.settings.sources import LoadedConfig
from dovetail_model import DovetailError


class ProfileEndpoint:
    """The endpoint of one profile. It can be started again after it died."""

    def __init__(self, name: ProfileName, profile: Profile, log_dir: Path) -> None:
        self.name: ProfileName = name
        self.profile = profile
        self._log_path = log_dir / f"server-{name}.log"
        self._log_number = 0
        self._process: DovetailProcess | None = None
        self._running: Iterator[DovetailProcess] | None = None
        self._target: LaunchTarget | None = None

    @property
    def target(self) -> LaunchTarget:
        assert self._target is not None
        return self._target

    def start(self) -> None:
        """Start the server, or query the one at the URL. Raises CompareError."""
        try:
            address = self.profile.url or self._start_server()
            self._target = _find_target(address, self.profile)
        except LaunchError as error:
            raise CompareError(f"profile {self.name}: {error}") from error

    def restart_if_dead(self) -> None:
        """Start a server of the experiment again if it has exited. Raises CompareError."""
        if self._process is not None and not self._process.is_running:
            self.stop()
            self.start()

    def stop(self) -> None:
        running, self._running, self._process = self._running, None, None
        if running is not None:
            for _ in running:
                pass

    def describe(self) -> str:
        """Return the endpoint as shown in messages."""
        return f"profile {self.name} ({self.profile.url or self.target.address})"

    def _start_server(self) -> str:
        self._log_number += 1
        path = self._log_path
        if self._log_number > 1:
            path = path.with_name(f"{path.stem}.{self._log_number}.log")
        self._running = _serve(self.profile, path)
        self._process = next(self._running)
        return self._process.address


def _serve(profile: Profile, log_path: Path) -> Iterator[DovetailProcess]:
    """Run the server until the iterator is exhausted."""
    with start_server(
        _build_arguments(profile), build_secret_environment(profile.settings), log_path
    ) as process:
        yield process


def _build_arguments(profile: Profile) -> list[str]:
    """Return the arguments of `dovetail serve`. The ledger of a run is not stored by default."""
    config, origins = profile.settings.config, dict(profile.settings.origins)
    model = config.model
    origins.pop("model", None)
    arguments = build_serve_arguments(LoadedConfig(config, origins), model)
    if "store" not in origins and "data_dir" not in origins:
        arguments += ["--store", "memory"]
    if profile.alias is not None and not {"served_model_name", "model_alias"} & origins.keys():
        arguments += ["--served-model-name", profile.alias]
    return [*arguments, "--http-port", "0"]


def _find_target(address: str, profile: Profile) -> LaunchTarget:
    try:
        server = fetch_server_info(address, profile.key)
    except NotDovetailError:
        return asyncio.run(_discover_target(address, profile))
    if profile.alias is None or server.has_model(profile.alias):
        return server.select_target(profile.alias)
    return replace(server.select_target(None), model=profile.alias)


async def _discover_target(url: str, profile: Profile) -> LaunchTarget:
    """Query a server that is not Dovetail."""
    address = url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {profile.key}"} if profile.key else {}
    try:
        found = await discover(Endpoint.parse(address, headers))
    except DovetailError as error:
        if profile.alias is None:
            raise LaunchError(f"{error.message}; set `alias` to the name of its model") from error
        return LaunchTarget(address, profile.alias, profile.key)
    model = profile.alias or found.name
    if not model:
        raise LaunchError(f"{address} does not list its models; set `alias`")
    return LaunchTarget(address, model, profile.key, found.context_length)


@contextmanager
def started_endpoints(
    profiles: dict[ProfileName, Profile], log_dir: Path
) -> Iterator[dict[ProfileName, ProfileEndpoint]]:
    """Run the endpoints of both profiles during the block."""
    endpoints = {name: ProfileEndpoint(name, one, log_dir) for name, one in profiles.items()}
    try:
        for endpoint in endpoints.values():
            endpoint.start()
        yield endpoints
    finally:
        for endpoint in endpoints.values():
            endpoint.stop()
