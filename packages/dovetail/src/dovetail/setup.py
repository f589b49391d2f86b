"""From settings to a service: models loaded, engines made, the ledger opened."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dovetail.catalog import Model, load_model
from dovetail.config import Config
from dovetail.engines.engine import TokenEngine
from dovetail.engines.registry import EngineSetup, EngineSetupError, create_engine
from dovetail.folders import data_folder
from dovetail.ledger.keyring import Keyring, folder_keyring, read_keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.store.memory import MemoryStore
from dovetail.ledger.store.sqlite import SqliteStore
from dovetail.ledger.store.store import Store
from dovetail.preparation import Preparer, Settings
from dovetail.service import Served, Service
from dovetail.stability import DEFAULT_PATTERNS, Stability
from dovetail.weights import find_model
from dovetail_model import Sampling

LOCAL = ("llamacpp", "scripted")
TEMPLATES = Path(__file__).parent / "templates"
TURNS = "turns.sqlite"  # in the data folder

#: Sampling under which a built-in model answers well; the files of its weights say nothing.
ADVISED = {"smollm2": Sampling(temperature=0.2, top_p=0.9)}
Progress = Callable[[int, int | None], None]


def build(config: Config, progress: Progress | None = None) -> Service:
    """The service that the settings ask for. Its engines are started by `Service.start`."""
    folder = config.data_dir or data_folder()
    path = find_model(config.model, folder, progress)
    model = load_model(
        path,
        tool_parser=config.tool_call_parser,
        reasoning_parser=config.reasoning_parser,
        custom_template=config.custom_jinja_template or own_template(config.model),
        switches=config.chat_template_kwargs,
    )
    is_path = Path(config.model).expanduser().exists()
    names = config.served_model_name or (path.resolve().name if is_path else config.model,)
    served = Served(
        names=names,
        model=model,
        preparer=Preparer(
            model, open_ledger(config, folder), open_keyring(config, folder), settings(config)
        ),
        engine=make_engine(config, model, path),
        max_context=config.context_length,
        defaults=default_sampling(config),
    )
    return Service([served], aliases(config))


def own_template(model: str) -> Path | None:
    """Our template for a built-in model: SmolLM2 answers better without its own system text."""
    path = TEMPLATES / f"{model}.jinja"
    return path if path.is_file() else None


def default_sampling(config: Config) -> Sampling:
    """What holds where a request does not say: the operator's values, then what suits the model."""
    advised = ADVISED.get(config.model, Sampling())
    given = {"temperature": config.temperature, "top_p": config.top_p, "top_k": config.top_k}
    return msgspec.structs.replace(advised, **{k: v for k, v in given.items() if v is not None})


def settings(config: Config) -> Settings:
    """What an operator decides about prompts."""
    return Settings(
        replay=config.replay,
        stability=Stability(
            strip_preamble=config.strip_anthropic_preamble,
            volatile=(*DEFAULT_PATTERNS, *config.volatile_pattern),
        ),
        default_thinking=config.default_thinking_mode,
        template_switches=config.chat_template_kwargs,
        resume_drop_thinking=config.resume_drop_thinking,
        hide_unusable_tools=config.exclude_tools_when_tool_choice_none,
    )


def open_ledger(config: Config, folder: Path) -> Ledger:
    return Ledger(_store(config.store, folder), shared=config.store != "memory")


def open_keyring(config: Config, folder: Path) -> Keyring:
    if config.seal_key_file is not None:
        return read_keyring(config.seal_key_file)
    return folder_keyring(folder)


def make_engine(config: Config, model: Model, path: Path) -> TokenEngine:
    name = config.engine
    if name == "auto":
        name = "scripted" if config.script is not None else "llamacpp"
    first = [id for stop in model.stops if (id := model.tokenizer.controls.get(stop)) is not None]
    by_engine: dict[str, dict[str, Any]] = {
        "scripted": {"script": config.script},
        "llamacpp": {
            "threads": config.threads,
            "slots": config.slots,
            "gpu_layers": config.gpu_layers,
        },
    }
    options = by_engine.get(name, {})
    setup = EngineSetup(
        tokenizer=model.tokenizer,
        model=path,
        url=config.engine_url,
        context_length=config.context_length,
        stop_ids=(*first, *(model.stop_ids - set(first))),
        options={key: value for key, value in options.items() if value is not None},
    )
    if config.engine_url is not None and name in LOCAL:
        raise EngineSetupError(f"the engine {name!r} runs here: it takes no --engine-url")
    engine = create_engine(name, setup)
    if not isinstance(engine, TokenEngine):
        raise EngineSetupError(f"the engine {name!r} does not give tokens")
    return engine


def aliases(config: Config) -> dict[str, str]:
    """Aliases as written on the command line: ALIAS=NAME."""
    found: dict[str, str] = {}
    for written in config.model_alias:
        alias, equals, name = written.partition("=")
        if not (alias and equals and name):
            raise ValueError(f"--model-alias {written}: ALIAS=NAME is wanted")
        found[alias] = name
    return found


def _store(name: str, folder: Path) -> Store:
    if name == "memory":
        return MemoryStore()
    if name == "sqlite":
        return SqliteStore(folder / TURNS)
    if name.startswith(("redis://", "rediss://", "unix://")):
        from dovetail.ledger.store.redis import RedisStore

        return RedisStore(name)
    raise ValueError(f"--store {name}: sqlite, memory or a redis:// URL is wanted")
