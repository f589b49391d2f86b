"""Build the model registry of a server with its stores and engines from the settings."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import msgspec

from dovetail import models as model_files
from dovetail.engines.registry import UPSTREAMS, EngineSetupError
from dovetail.ledger.keyring import Keyring, load_or_create_keyring, read_keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.ledger.seal import Sealer
from dovetail.ledger.sealed_text import TextSealer
from dovetail.ledger.sqlite_store import SqliteLedgerStore
from dovetail.ledger.store import LedgerStore
from dovetail.models.loader import Model, ModelLoadError, load_model
from dovetail.models.weights import (
    BUILT_IN_MODELS,
    DEFAULT_MODEL,
    ModelUnavailableError,
    find_model,
    find_tokenizer_files,
)
from dovetail.pipeline.documents import PdfProcesses
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.recovery import RecoveryPolicy
from dovetail.pipeline.registry import (
    ModelEntry,
    ModelRegistry,
    PromptTokenizer,
    TokenModel,
    UpstreamModel,
)
from dovetail.pipeline.rendering import PromptSettings
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.volatile_text import DEFAULT_PATTERNS, NormalizationOptions
from dovetail.responses.backend import ResponseBackend
from dovetail.responses.memory import MemoryResponseBackend
from dovetail.responses.sqlite import SqliteResponseBackend
from dovetail.responses.store import ResponseStore
from dovetail.routing.pool import ReplicaPool
from dovetail.server.engines import (
    RemoteEngine,
    adapter_names,
    create_pool,
    create_upstream_engine,
    discover_remote_engine,
)
from dovetail.server_tools.runner import ServerTools
from dovetail.server_tools.search import create_provider
from dovetail.server_tools.web_client import WebClient
from dovetail.settings.config import Config
from dovetail.settings.installation import default_data_dir, install_command
from dovetail.settings.usage_config import UsageConfig
from dovetail.storage.database_file import move_damaged_file, require_undamaged
from dovetail.storage.redis_url import REDIS_SCHEMES
from dovetail.storage.sqlite import ExpiryClock
from dovetail.usage.prices import Prices
from dovetail_model import DovetailError, Sampling

LEDGER_FILE = "turns.sqlite"  # in the data folder
RESPONSES_FILE = "responses.sqlite"


def open_ledger(config: Config, folder: Path, *, serves: bool = True) -> Ledger:
    """Open the ledger. Processes that share a persistent store also find each other's turns.

    `serves`: the process generates turns. Commands that only read leave no files in the folder.
    """
    persistent = config.store != "memory"
    store = _open_ledger_store(config.store, folder, serves=serves)
    return Ledger(store, shared=persistent)


def open_response_store(config: Config, folder: Path) -> ResponseStore:
    """Open the store of responses that clients can retrieve and continue."""
    # Two servers of one user share a data folder by default, and so do a draining server and its
    # replacement.
    persistent = config.store != "memory"
    return ResponseStore(
        _open_response_backend(config, folder), shared=persistent, has_peers=_has_peers(config)
    )


def open_keyring(config: Config, folder: Path) -> Keyring:
    if config.seal_key_file is not None:
        return read_keyring(config.seal_key_file)
    return load_or_create_keyring(folder)


def _has_peers(config: Config) -> bool:
    return config.workers > 1 if config.store == "sqlite" else config.store != "memory"


def _check_store_files(folder: Path) -> None:
    """Move a damaged ledger aside. Raises if the stored responses are damaged.

    Without the ledger, turns are rendered again. Stored responses cannot be restored.
    """
    require_undamaged(folder / RESPONSES_FILE, "response store")
    move_damaged_file(folder / LEDGER_FILE, "ledger")


def _open_response_backend(config: Config, folder: Path) -> ResponseBackend:
    max_bytes, max_age = config.responses_max_bytes, config.responses_max_age
    if config.store == "memory":
        return MemoryResponseBackend(max_bytes=max_bytes, max_age=max_age, clock=ExpiryClock())
    if config.store == "sqlite":
        return SqliteResponseBackend(
            folder / RESPONSES_FILE,
            max_bytes=max_bytes,
            max_age=max_age,
            expiry_clock=ExpiryClock(),
        )
    from dovetail.responses.redis import RedisResponseBackend

    return RedisResponseBackend(config.store, max_age=max_age)


def _open_ledger_store(name: str, folder: Path, *, serves: bool) -> LedgerStore:
    if name == "memory":
        # It does not know the turns of earlier processes.
        return MemoryLedgerStore(exhaustive=False, clock=ExpiryClock())
    if name == "sqlite":
        return SqliteLedgerStore(folder / LEDGER_FILE, expiry_clock=ExpiryClock())
    if name.startswith(REDIS_SCHEMES):
        if find_spec("redis") is None:
            raise ValueError(f"--store with a Redis URL requires: {install_command('redis')}")
        from dovetail.ledger.redis_store import RedisLedgerStore

        return RedisLedgerStore(name, folder=folder if serves else None)
    raise ValueError(
        f"--store must be sqlite, memory, or a redis:// or redis+cluster:// URL, got {name}"
    )


#: Claude Code requests other models in addition to the configured one, such as its small model.
CLAUDE_ALIAS = "claude-*"
TEMPLATES = Path(model_files.__file__).parent / "templates"

#: Sampling defaults of built-in models whose files have none.
RECOMMENDED_SAMPLING = {
    "smollm2": Sampling(temperature=0.2, top_p=0.9),
    "smollm2-agent": Sampling(temperature=0.0),
}
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class _SharedParts:
    """Objects that all models of a server share."""

    folder: Path
    ledger: Ledger
    keyring: Keyring


def build_service(config: Config, progress: Progress | None = None) -> ModelRegistry:
    """Build the model registry from the settings. `ModelRegistry.start` starts its engines."""
    folder = config.data_dir or default_data_dir()
    if config.store == "sqlite":
        _check_store_files(folder)
    shared = _SharedParts(folder, open_ledger(config, folder), open_keyring(config, folder))
    configs = [replace(config, models=(), **table) for table in config.models] or [config]
    models = [_build_model(one, shared, progress) for one in configs]
    entries = [
        entry
        for one, model in zip(configs, models, strict=True)
        for entry in (model, *_adapter_entries(one, model))
    ]
    default_aliases = (
        {CLAUDE_ALIAS: models[0].name} if len(models) == 1 and not config.model_alias else {}
    )
    return ModelRegistry(
        entries,
        parse_aliases(config) or default_aliases,
        open_response_store(config, folder),
        shared.ledger.faults,
        _build_server_tools(config, shared),
    )


def _build_server_tools(config: Config, shared: _SharedParts) -> ServerTools:
    """Build what runs server tools. Without settings it only opens results of earlier runs."""
    try:
        search = None if config.web_search is None else create_provider(config.web_search)
    except ValueError as error:
        raise ValueError(f"--web-search: {error}") from error
    return ServerTools(
        TextSealer(shared.keyring),
        search,
        WebClient(config.web_fetch_private) if config.web_fetch else None,
        PdfProcesses().extract,
        timeout_seconds=config.server_tool_timeout,
        max_turns=config.max_server_tool_turns,
    )


def build_local_engine(
    config: Config, progress: Progress | None = None
) -> tuple[Model, ReplicaPool]:
    """Build only a local model and its engine, for a process that serves it to the workers."""
    path = _find_files(config, config.data_dir or default_data_dir(), None, progress)
    model = _load_model(config, path, None)
    return model, create_pool(config, model, path, None)


def _build_model(config: Config, shared: _SharedParts, progress: Progress | None) -> ModelEntry:
    """Build one model. A remote engine is queried first, because it may report its model."""
    if config.recover and config.engine in UPSTREAMS:
        raise ValueError(
            f"--recover cannot be used with --engine {config.engine}: the upstream server renders "
            "and parses by itself, so a turn cannot be continued token by token"
        )
    if config.session_scheduling != "off" and config.engine in UPSTREAMS:
        raise ValueError(
            f"--session-scheduling cannot be used with --engine {config.engine}: only the upstream "
            "server knows the tokens of its prompts"
        )
    remote = discover_remote_engine(config)
    if remote is not None and config.engine in UPSTREAMS:
        return _build_upstream_model(config, shared, remote)
    return _build_token_model(config, shared, remote, progress)


def _adapter_entries(config: Config, base: ModelEntry) -> list[TokenModel]:
    """Return an entry for each LoRA adapter of a model: its own name, with all parts shared."""
    if not isinstance(base, TokenModel):
        return []
    return [replace(base, names=(name,), adapter=name) for name in adapter_names(config)]


def _build_upstream_model(
    config: Config, shared: _SharedParts, remote: RemoteEngine
) -> UpstreamModel:
    # An upstream with many models gets the client's model name unless the settings name one.
    if config.model is not None or config.served_model_name:
        remote = replace(remote, model=replace(remote.model, names=(remote.model.name,)))
    return UpstreamModel(
        names=config.served_model_name or remote.model.names or (remote.model.name,),
        engine=create_upstream_engine(config, remote),
        normalizer=PromptNormalizer(preparation_settings(config).normalization),
        sealer=Sealer(shared.keyring),
        max_context=config.context_length,
        default_sampling=default_sampling(config),
        codex_profile=config.codex_profile,
        tokenizer=_load_prompt_tokenizer(config, shared, remote),
        prices=model_prices(config),
    )


def _load_prompt_tokenizer(
    config: Config, shared: _SharedParts, remote: RemoteEngine
) -> PromptTokenizer | None:
    """Load the tokenizer with which prompts of an upstream are counted, if the settings name one.

    Its ledger stays empty, because the tokens of an upstream's turns are unknown.
    """
    if config.tokenizer is None:
        return None
    model = _load_model(config, find_tokenizer_files(remote.model, config.tokenizer), remote)
    ledger = Ledger(MemoryLedgerStore(exhaustive=False, clock=ExpiryClock()))
    settings = preparation_settings(config)
    return PromptTokenizer(model, ChatPreparer(model, ledger, shared.keyring, settings))


def _build_token_model(
    config: Config, shared: _SharedParts, remote: RemoteEngine | None, progress: Progress | None
) -> TokenModel:
    path = _find_files(config, shared.folder, remote, progress)
    model = _load_model(config, path, remote)
    return TokenModel(
        names=config.served_model_name or _default_names(config, path, remote),
        model=model,
        preparer=ChatPreparer(model, shared.ledger, shared.keyring, preparation_settings(config)),
        engine=create_pool(config, model, path, remote),
        max_context=config.context_length,
        migration_limit=config.migration_limit,
        recovery_wait=config.recovery_wait,
        default_sampling=default_sampling(config),
        codex_profile=config.codex_profile,
        keep_logprobs=config.keep_logprobs,
        guided_fallback=config.guided_fallback,
        recovery=recovery_policy(config),
        fallback=config.fallback,
        prices=model_prices(config),
    )


def _load_model(config: Config, path: Path, remote: RemoteEngine | None) -> Model:
    template = bundled_template(_model_name(config)) if remote is None else None
    return load_model(
        path,
        tool_parser=config.tool_call_parser,
        reasoning_parser=config.reasoning_parser,
        custom_template=config.custom_jinja_template or template,
        switches=config.chat_template_kwargs,
    )


def _find_files(
    config: Config, folder: Path, remote: RemoteEngine | None, progress: Progress | None
) -> Path:
    """Find the model's tokenizer and template and, for a local engine, its weights."""
    if remote is None:
        return find_model(_model_name(config), folder, progress)
    tokenizer_name = config.model if config.model not in remote.model.names else None
    return find_tokenizer_files(remote.model, config.tokenizer or tokenizer_name)


def _default_names(config: Config, path: Path, remote: RemoteEngine | None) -> tuple[str, ...]:
    """Return the names of a model for which the settings have no `served_model_name`."""
    if remote is not None:
        return tuple(dict.fromkeys((remote.model.name, *remote.model.names)))
    name = _model_name(config)
    return (path.resolve().name if Path(name).expanduser().exists() else name,)


def _model_name(config: Config) -> str:
    return config.model or DEFAULT_MODEL


def bundled_template(model: str) -> Path | None:
    """Return the bundled template of a model, if any. SmolLM2 works better without system text."""
    built_in = BUILT_IN_MODELS.get(model)
    path = TEMPLATES / f"{built_in.file_stem if built_in else model}.jinja"
    return path if path.is_file() else None


def default_sampling(config: Config) -> Sampling:
    """Return the sampling defaults: the operator's values, else those recommended for the model."""
    remote = config.has_remote_url
    recommended = (
        Sampling() if remote else RECOMMENDED_SAMPLING.get(_model_name(config), Sampling())
    )
    configured = {"temperature": config.temperature, "top_p": config.top_p, "top_k": config.top_k}
    return msgspec.structs.replace(
        recommended, **{k: v for k, v in configured.items() if v is not None}
    )


def preparation_settings(config: Config) -> PromptSettings:
    """Return the prompt settings of a configuration."""
    return PromptSettings(
        replay=config.replay,
        normalization=NormalizationOptions(
            strip_preamble=config.strip_anthropic_preamble,
            volatile=(*DEFAULT_PATTERNS, *config.volatile_pattern),
        ),
        default_thinking=config.default_thinking_mode,
        template_switches=config.chat_template_kwargs,
        resume_drop_thinking=config.resume_drop_thinking,
        reasoning_retention=config.reasoning_retention,
        hide_unusable_tools=config.exclude_tools_when_tool_choice_none,
        keep_moved_content=config.keep_moved_content,
        images=config.images,
        max_context=config.context_length,
        stop_scope=config.stop_scope,
        identical_calls=config.recover_identical_calls if "loop" in config.recover else None,
    )


def recovery_policy(config: Config) -> RecoveryPolicy:
    """Return which defective turns of a model are recovered."""
    return RecoveryPolicy(
        frozenset(config.recover), config.recover_loop_tokens, config.recover_identical_calls
    )


def model_prices(config: UsageConfig) -> Prices:
    """Return the prices of a model."""
    return Prices(config.price_prompt or 0.0, config.price_cached, config.price_output or 0.0)


def parse_aliases(config: Config) -> dict[str, str]:
    """Parse the aliases of the settings, each of the form ALIAS=NAME."""
    aliases: dict[str, str] = {}
    for text in config.model_alias:
        alias, equals, name = text.partition("=")
        if not (alias and equals and name):
            raise ValueError(f"--model-alias must be ALIAS=NAME, got {text}")
        aliases[alias] = name
    return aliases


SETUP_ERRORS = (
    ModelLoadError,
    EngineSetupError,
    ModelUnavailableError,
    DovetailError,
    ValueError,
    OSError,
)
