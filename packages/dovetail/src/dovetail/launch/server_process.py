"""Run a Dovetail server for the duration of one launch."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import IO, Any

from dovetail.launch.plan import LaunchError
from dovetail.launch.private_files import open_private_file
from dovetail.models.weights import BUILT_IN_MODELS, DEFAULT_MODEL
from dovetail.settings.config import Config
from dovetail.settings.sources import CONFIG_FILE_ENV, ENV_PREFIX, SECRET_SETTINGS, LoadedConfig

_READY_LINE = re.compile(r"^serving .* at (\S+)$")
_LOG_TAIL_LINES = 15
_STOP_TIMEOUT_SECONDS = 15.0  # after that, the server is killed


@contextmanager
def start_server(
    arguments: Sequence[str], secrets: Mapping[str, str], log_path: Path
) -> Iterator["DovetailProcess"]:
    """Run `dovetail serve` with these arguments until the block exits."""
    with open_private_file(log_path) as log_file:
        # In a new session, because Ctrl-C is meant for the harness.
        process = subprocess.Popen(
            # -P: agents run in untrusted projects, from which no module must be imported.
            [sys.executable, "-P", "-m", "dovetail.launch.server_main", "serve", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_file,
            text=True,
            env={CONFIG_FILE_ENV: "", **os.environ, **secrets},
            start_new_session=True,
        )
        child = DovetailProcess(process, log_path, log_file)
        try:
            child.wait_until_ready()
            yield child
        finally:
            child.stop()


class DovetailProcess:
    """A running server. Its log file stays open: another run may have replaced it by name."""

    __slots__ = ("_log_file", "_log_path", "_process", "address")

    def __init__(self, process: "subprocess.Popen[str]", log_path: Path, log_file: IO[str]) -> None:
        self._process = process
        self._log_path = log_path
        self._log_file = log_file
        self.address = ""

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Wait for the ready line. Raises LaunchError with the log's tail if the process exits."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = _READY_LINE.match(line.rstrip())
            if found:
                self.address = found[1]
                Thread(target=_drain, args=(self._process.stdout,), daemon=True).start()
                return
        self._process.wait()
        raise LaunchError(f"the server did not start:\n{self.read_log_tail()}")

    def stop(self) -> None:
        """Stop the server and wait for its exit."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def read_log_tail(self) -> str:
        """Return the last lines of the log, and its path."""
        self._log_file.seek(0)
        lines = self._log_file.read().splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join([*lines, f"(log: {self._log_path})"])


def _drain(stream: IO[str]) -> None:
    """Discard further output so that the server never blocks on a full pipe."""
    for _ in stream:
        pass


_NON_FILE_ORIGINS = ("flag", "environment")


def build_serve_arguments(settings: LoadedConfig, model: str | None) -> list[str]:
    """Return the arguments of `dovetail serve`, without keys: the process list shows arguments."""
    arguments = [] if model is None or settings.config.models else [model]
    file = next((one for one in settings.origins.values() if one not in _NON_FILE_ORIGINS), None)
    if file is not None:
        arguments += ["--config", file]
    for name, origin in settings.origins.items():
        if origin == "flag" and name not in SECRET_SETTINGS:
            arguments += _to_flag_arguments(name.replace("_", "-"), getattr(settings.config, name))
    return arguments


def build_port_arguments(settings: LoadedConfig) -> list[str]:
    """Return a flag that selects a free port, unless a port is set."""
    return [] if "http_port" in settings.origins else ["--http-port", "0"]


def build_secret_environment(settings: LoadedConfig) -> dict[str, str]:
    """Return the keys as environment variables."""
    secrets = {name: getattr(settings.config, name) for name in SECRET_SETTINGS}
    return {
        f"{ENV_PREFIX}{name.upper()}": value if isinstance(value, str) else ",".join(value)
        for name, value in secrets.items()
        if value
    }


def find_builtin_window(config: Config, model: str | None) -> tuple[str, int] | None:
    """Return the name and context length of a built-in model, known before its download."""
    name = model or config.model or DEFAULT_MODEL
    if config.has_remote_url or config.models or name not in BUILT_IN_MODELS:
        return None
    window = BUILT_IN_MODELS[name].context_length
    return name, min(window, config.context_length or window)


def _to_flag_arguments(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, tuple):
        return [part for one in value for part in (f"--{name}", str(one))]
    return [f"--{name}", json.dumps(dict(value)) if isinstance(value, Mapping) else str(value)]
