"""What outlives a server: the turns that it knows, the keys that seal them, and responses."""

from importlib.util import find_spec
from pathlib import Path

from dovetail.ledger.keyring import Keyring, load_or_create_keyring, read_keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.ledger.sqlite_store import SqliteLedgerStore
from dovetail.ledger.store import LedgerStore
from dovetail.responses import backend as responses
from dovetail.responses.memory import MemoryResponseBackend
from dovetail.responses.sqlite import SqliteResponseBackend
from dovetail.responses.store import ResponseStore
from dovetail.settings.config import Config
from dovetail.settings.installation import install_command

LEDGER_FILE = "turns.sqlite"  # in the data folder
RESPONSES_FILE = "responses.sqlite"


def open_ledger(config: Config, folder: Path) -> Ledger:
    """The turns. Whoever shares a Redis does so to be asked for any of them, as workers are."""
    kept = config.store != "memory"
    return Ledger(
        _open_ledger_store(config.store, folder), shared=kept, has_worker_peers=_has_peers(config)
    )


def open_response_store(config: Config, folder: Path) -> ResponseStore:
    """The responses that clients may fetch and go on from, where the turns are."""
    # Two servers of one user share a folder unless told otherwise, and so do an old one that
    # drains and the new one in its place.
    kept = config.store != "memory"
    return ResponseStore(
        _open_response_backend(config, folder), shared=kept, has_peers=_has_peers(config)
    )


def open_keyring(config: Config, folder: Path) -> Keyring:
    if config.seal_key_file is not None:
        return read_keyring(config.seal_key_file)
    return load_or_create_keyring(folder)


def _has_peers(config: Config) -> bool:
    return config.workers > 1 if config.store == "sqlite" else config.store != "memory"


def _open_response_backend(config: Config, folder: Path) -> responses.ResponseBackend:
    most, age = config.responses_max_bytes, config.responses_max_age
    if config.store == "memory":
        return MemoryResponseBackend(max_bytes=most, max_age=age)
    if config.store == "sqlite":
        return SqliteResponseBackend(folder / RESPONSES_FILE, max_bytes=most, max_age=age)
    from dovetail.responses.redis import RedisResponseBackend

    return RedisResponseBackend(config.store, max_age=age)


def _open_ledger_store(name: str, folder: Path) -> LedgerStore:
    if name == "memory":
        return MemoryLedgerStore()
    if name == "sqlite":
        return SqliteLedgerStore(folder / LEDGER_FILE)
    if name.startswith(("redis://", "rediss://", "unix://")):
        if find_spec("redis") is None:
            raise ValueError(f"--store with a Redis needs more: {install_command('redis')}")
        from dovetail.ledger.redis_store import RedisLedgerStore

        return RedisLedgerStore(name)
    raise ValueError(f"--store {name}: sqlite, memory or a redis:// URL is wanted")
