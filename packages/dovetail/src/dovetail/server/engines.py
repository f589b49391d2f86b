"""Remote engines, as far as they must be asked before anything can be loaded."""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from dovetail.engines.engine import RemoteModel
from dovetail.engines.registry import REMOTE_ENGINES, EngineSetupError, discover_model
from dovetail.net.http_client import Endpoint
from dovetail.settings.config import Config
from dovetail_model import DovetailError, EngineUnavailable

POLL_INTERVAL_SECONDS = 2.0  # seconds between two looks at an engine that is awaited

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteEngine:
    """Servers of one model, and what the first that answered says about it."""

    endpoints: tuple[Endpoint, ...]
    model: RemoteModel


def discover_remote_engine(config: Config) -> RemoteEngine | None:
    """Who listens at the engine's addresses; None for engines that run here."""
    name = config.engine
    if name not in REMOTE_ENGINES:
        if config.engine_url and ":" not in name:
            raise EngineSetupError(f"the engine {name!r} runs here: it takes no --engine-url")
        return None
    if not config.engine_url:
        raise EngineSetupError(f"the engine {name!r} needs the address of a server: --engine-url")
    endpoints = tuple(_parse_endpoint(url, config.engine_api_key) for url in config.engine_url)
    return RemoteEngine(
        endpoints, _select_model(config, _discover_any(name, endpoints, config.engine_wait))
    )


def _parse_endpoint(url: str, key: str | None) -> Endpoint:
    key = (key or "").strip()  # files of keys end with a line end
    if not (key.isascii() and key.isprintable()):
        raise EngineSetupError("--engine-api-key: no key has such characters in it")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        # Users paste the address that an SDK wants, too.
        return Endpoint.parse(url.rstrip("/").removesuffix("/v1"), headers)
    except ValueError as error:
        raise EngineSetupError(f"--engine-url: {error}") from error


def _discover_any(name: str, endpoints: tuple[Endpoint, ...], timeout: float) -> RemoteModel:
    """What the first server that answers says it serves."""
    until = time.monotonic() + timeout
    while True:
        faults = []
        for endpoint in endpoints:
            try:
                return _discover_in_thread(name, endpoint)
            except DovetailError as fault:
                faults.append(fault.message)
        if time.monotonic() >= until:
            told = f"the engine {name!r} does not answer: {'; '.join(faults)}"
            hint = "" if timeout else " (--engine-wait SECONDS waits for one that starts)"
            raise EngineUnavailable(told + hint)
        _log.info("waiting_for_engine", extra={"fields": {"engine": name, "reason": faults[0]}})
        time.sleep(POLL_INTERVAL_SECONDS)


def _discover_in_thread(name: str, endpoint: Endpoint) -> RemoteModel:
    """Asks from a thread of its own: whoever sets up a server may be inside an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(discover_model(name, endpoint))).result()


def _select_model(config: Config, found: RemoteModel) -> RemoteModel:
    """The model that the settings name, if the server has several."""
    names = found.names or (found.name,)
    if config.model is None or config.model == found.name:
        return found
    if config.model in found.adapters:
        return replace(found, name=config.model, names=(config.model,))
    if config.model in names:
        return replace(found, name=config.model)
    if config.engine == "openai":
        return replace(found, name=config.model, root=None)  # many upstreams load what is asked for
    if config.tokenizer is None:
        return found  # a folder or an id: where the tokenizer is
    raise EngineSetupError(
        f"the engine {config.engine!r} serves {', '.join((*names, *found.adapters))}, "
        f"not {config.model}"
    )
