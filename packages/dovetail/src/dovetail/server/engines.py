"""Discover remote engines, and create the engines of a model."""

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from dovetail.engines.engine import RemoteModel, TokenEngine, UpstreamEngine
from dovetail.engines.hosted import hosted_adapters
from dovetail.engines.kv_cache import fetch_kv_cache_info
from dovetail.engines.registry import (
    EMBEDDABLE_ENGINES,
    REMOTE_ENGINES,
    EngineSetup,
    EngineSetupError,
    UpstreamSetup,
    create_engine,
    create_upstream,
    discover_model,
    require_known_engine,
    runs_locally,
)
from dovetail.engines.vllm.process import parse_adapters
from dovetail.models.loader import Model
from dovetail.models.weights import DEFAULT_MODEL, find_adapter
from dovetail.net.http_client import Endpoint
from dovetail.routing.kv_endpoints import KvEventAddresses
from dovetail.routing.kv_event_index import DEFAULT_BLOCK_TOKENS, KvEventIndex
from dovetail.routing.kv_service import MissingKvExtra, create_kv_service
from dovetail.routing.membership import (
    DnsName,
    ReplicaMembership,
    SourceError,
    UrlFile,
    UrlSource,
    normalize_url,
)
from dovetail.routing.policy import POLICIES
from dovetail.routing.pool import ReplicaPool
from dovetail.routing.prefix_index import DEFAULT_CAPACITY_TOKENS, LocalIndex, PrefixIndex
from dovetail.routing.router import Router
from dovetail.routing.session_admission import SessionAdmission
from dovetail.routing.session_turns import SchedulingLimits
from dovetail.settings.config import Config
from dovetail_model import DovetailError, EngineUnavailable

#: The engine of worker processes, which another process of the server runs.
HOSTED_ENGINE = "dovetail.engines.hosted:create"
KV_EVENT_ENGINES = ("vllm", "sglang")
POLL_INTERVAL_SECONDS = 2.0  # between two attempts to reach an engine

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteEngine:
    """The servers of one model, and the model that the first reachable one reports.

    `urls`: their URLs.
    `sources`: the sources of URLs that change while the server runs.
    """

    endpoints: tuple[Endpoint, ...]
    model: RemoteModel
    urls: tuple[str, ...] = ()
    sources: Mapping[UrlSource, tuple[str, ...]] = field(default_factory=dict)


def discover_remote_engine(config: Config) -> RemoteEngine | None:
    """Query the addresses of a remote engine. Returns None for local engines."""
    name = config.engine
    if runs_locally(name, config.has_remote_url):
        require_known_engine(name)
        if config.has_remote_url and ":" not in name:
            raise EngineSetupError(
                f"--engine-url cannot be combined with the local engine {name!r}; "
                f"set --engine to one of {', '.join(REMOTE_ENGINES)}"
            )
        return None
    sources = _read_sources(config)
    urls = tuple(dict.fromkeys([*map(_normalize, config.engine_url), *chain(*sources.values())]))
    if not urls:
        raise EngineSetupError(f"the engine {name!r} requires --engine-url, the URL of its server")
    endpoints = tuple(_parse_endpoint(url, config.engine_api_key) for url in urls)
    if any(one.steps for one in endpoints) and name not in EMBEDDABLE_ENGINES:
        raise EngineSetupError(f"--engine-url: the engine {name!r} requires an http:// URL")
    model = _select_model(config, _discover_any(name, endpoints, config.engine_wait))
    return RemoteEngine(endpoints, model, urls, sources)


def _read_sources(config: Config) -> dict[UrlSource, tuple[str, ...]]:
    """Return the sources of URLs that change while the server runs, with their current URLs."""
    sources: list[UrlSource] = [DnsName(url) for url in config.engine_dns]
    if config.engine_url_file is not None:
        sources.append(UrlFile(config.engine_url_file))
    try:
        return {source: source.read() for source in sources}
    except SourceError as error:
        raise EngineSetupError(f"--engine-dns, --engine-url-file: {error}") from error


def _normalize(url: str) -> str:
    try:
        return normalize_url(url)
    except SourceError as error:
        raise EngineSetupError(f"--engine-url: {error}") from error


def _parse_endpoint(url: str, key: str | None) -> Endpoint:
    key = (key or "").strip()  # keys that were read from a file end with a newline
    if not (key.isascii() and key.isprintable()):
        raise EngineSetupError("--engine-api-key must contain only printable ASCII characters")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return Endpoint.parse(url, headers)


def _discover_any(name: str, endpoints: tuple[Endpoint, ...], timeout: float) -> RemoteModel:
    """Query the servers in turn until one responds, within the timeout."""
    deadline = time.monotonic() + timeout
    while True:
        errors = []
        for endpoint in endpoints:
            try:
                return _discover_in_thread(name, endpoint)
            except DovetailError as error:
                errors.append(error.message)
        if time.monotonic() >= deadline:
            message = f"the engine {name!r} is not available: {'; '.join(errors)}"
            hint = "" if timeout else " (use --engine-wait SECONDS to wait for its start)"
            raise EngineUnavailable(message + hint)
        _log.info(
            "engine_discovery_failed", extra={"fields": {"engine": name, "reason": errors[0]}}
        )
        time.sleep(POLL_INTERVAL_SECONDS)


def _discover_in_thread(name: str, endpoint: Endpoint) -> RemoteModel:
    """Query in a separate thread, because the caller may run in an event loop."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(lambda: asyncio.run(discover_model(name, endpoint))).result()


def _select_model(config: Config, found: RemoteModel) -> RemoteModel:
    """Select the model that the settings name, if the server has several."""
    names = found.names or (found.name,)
    if config.model is None or config.model == found.name:
        return found
    if config.model in found.adapters:
        return replace(found, name=config.model, names=(config.model,))
    if config.model in names:
        return replace(found, name=config.model)
    if config.engine == "openai":
        return replace(found, name=config.model, root=None)  # many upstreams load any model
    if config.tokenizer is None:
        return found  # the setting is a folder or an id that locates the tokenizer
    raise EngineSetupError(
        f"the engine {config.engine!r} serves {', '.join((*names, *found.adapters))}, "
        f"not {config.model}"
    )


def create_pool(
    config: Config, model: Model, path: Path, remote: RemoteEngine | None
) -> ReplicaPool:
    """Create the replicas of a token engine: one per URL, or `replicas` local ones."""
    name = engine_name(config)
    stop_token_ids = [
        id for stop in model.stop_strings if (id := model.tokenizer.controls.get(stop)) is not None
    ]
    setup = EngineSetup(
        tokenizer=model.tokenizer,
        model=path,
        endpoint=None,
        remote=remote.model if remote is not None else None,
        context_length=config.context_length,
        stop_ids=(*stop_token_ids, *(model.stop_ids - set(stop_token_ids))),
        reasoning_end_ids=model.reasoning_end_ids,
        options=_engine_options(config, name),
    )
    router = Router(POLICIES[config.routing_policy], consistent=config.workers > 1)
    index = _create_index(config, name)
    sessions = create_session_admission(config)
    if remote is None:
        engines = [create_engine(name, setup) for _ in range(max(1, config.replicas))]
        return ReplicaPool(engines, router=router, index=index, sessions=sessions)

    def create(url: str) -> TokenEngine:
        endpoint = _parse_endpoint(url, config.engine_api_key)
        return create_engine(name, replace(setup, endpoint=endpoint))

    pool = ReplicaPool(
        [create(url) for url in remote.urls],
        router=router,
        index=index,
        urls=remote.urls,
        sessions=sessions,
    )
    pool.membership = ReplicaMembership(
        pool,
        create,
        remote.sources,
        is_shared=config.workers > 1,
        fixed=[*map(_normalize, config.engine_url)],
    )
    return pool


def create_session_admission(config: Config) -> SessionAdmission | None:
    """Create what schedules the sessions of a model; None if that is off.

    Raises `ValueError` if the setting cannot have the effect that it promises.
    """
    if config.session_scheduling == "off":
        return None
    if config.workers > 1:
        raise ValueError(
            "--session-scheduling auto requires --workers 1: worker processes do not know each "
            "other's sessions"
        )
    # With KV events, the replicas report the size of their blocks, but not before they cache some.
    has_blocks = config.kv_blocks is not None and (config.kv_block_size or not config.kv_events)
    blocks = _cache_tokens(config) if has_blocks else None
    limits = SchedulingLimits(max_wait_seconds=config.session_max_wait)
    return SessionAdmission(config.kv_tokens or blocks, limits)


def _cache_tokens(config: Config) -> int:
    """Return how many tokens the KV cache of a replica holds, as far as the settings define it."""
    if config.kv_blocks is None:
        return DEFAULT_CAPACITY_TOKENS
    return config.kv_blocks * (config.kv_block_size or DEFAULT_BLOCK_TOKENS)


def _create_index(config: Config, name: str) -> PrefixIndex:
    """Create the index of KV events if the settings have their addresses."""
    if not config.kv_events:
        if config.kv_events_replay:
            raise EngineSetupError("--kv-events-replay requires --kv-events")
        return LocalIndex(_cache_tokens(config))
    if name not in KV_EVENT_ENGINES or not config.has_remote_url:
        raise EngineSetupError(
            f"--kv-events requires --engine {' or '.join(KV_EVENT_ENGINES)} with --engine-url, "
            f"got {name!r}"
        )
    try:
        addresses = KvEventAddresses(config.kv_events, config.kv_events_replay)
        if addresses.is_auto and name != "sglang":
            raise ValueError("--kv-events auto requires --engine sglang: vLLM reports no address")
        service = create_kv_service()
    except (ValueError, MissingKvExtra) as error:
        raise EngineSetupError(str(error)) from error
    return KvEventIndex(
        service,
        addresses,
        lambda url: fetch_kv_cache_info(name, _parse_endpoint(url, config.engine_api_key)),
        block_tokens=config.kv_block_size,
        capacity_tokens=_cache_tokens(config),
        has_salts=name == "vllm",
    )


def adapter_names(config: Config) -> tuple[str, ...]:
    """Return the LoRA adapters of an engine on this machine. Each is served under its name."""
    name = engine_name(config)
    if name == HOSTED_ENGINE:
        return hosted_adapters(_engine_options(config, name)["traits"])
    if name not in EMBEDDABLE_ENGINES or not runs_locally(name, config.has_remote_url):
        return ()
    return tuple(parse_adapters(_engine_options(config, name).get("lora_modules", "")))


def create_upstream_engine(config: Config, remote: RemoteEngine) -> UpstreamEngine:
    """Create an upstream engine, which renders and parses by itself."""
    if len(remote.endpoints) > 1:
        raise EngineSetupError(
            f"the engine {config.engine!r} supports only one --engine-url: its streams cannot be "
            "migrated to another server"
        )
    options = _engine_options(config, config.engine)
    return create_upstream(config.engine, UpstreamSetup(remote.endpoints[0], remote.model, options))


def engine_name(config: Config) -> str:
    if config.engine != "auto":
        return config.engine
    return "scripted" if config.script is not None else "llamacpp"


def _adapter_path(config: Config) -> str | None:
    adapter = find_adapter(config.model or DEFAULT_MODEL)
    return str(adapter) if adapter is not None else None


def _engine_options(config: Config, name: str) -> dict[str, Any]:
    """Return the engine's own options: those with flags, then those of --engine-option."""
    flags: Mapping[str, Mapping[str, Any]] = {
        "scripted": {"script": config.script},
        "llamacpp": {
            "threads": config.threads,
            "slots": config.slots,
            "gpu_layers": config.gpu_layers,
            "adapter": _adapter_path(config),
        },
        "openai": {
            "api": config.upstream_api,
            "raw": config.upstream_raw,
            "tool_parser": config.tool_call_parser,
            "reasoning_parser": config.reasoning_parser,
        },
    }
    options = {key: value for key, value in flags.get(name, {}).items() if value is not None}
    for text in config.engine_option:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ValueError(f"--engine-option must be NAME=VALUE, got {text}")
        options[key.replace("-", "_")] = value
    return options
