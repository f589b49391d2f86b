"""What outlives a server: the turns that it knows, and the keys that seal them."""

from pathlib import Path

from dovetail.config import Config
from dovetail.ledger.keyring import Keyring, folder_keyring, read_keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.store.memory import MemoryStore
from dovetail.ledger.store.sqlite import SqliteStore
from dovetail.ledger.store.store import Store

TURNS = "turns.sqlite"  # in the data folder


def open_ledger(config: Config, folder: Path) -> Ledger:
    return Ledger(_store(config.store, folder), shared=config.store != "memory")


def open_keyring(config: Config, folder: Path) -> Keyring:
    if config.seal_key_file is not None:
        return read_keyring(config.seal_key_file)
    return folder_keyring(folder)


def _store(name: str, folder: Path) -> Store:
    if name == "memory":
        return MemoryStore()
    if name == "sqlite":
        return SqliteStore(folder / TURNS)
    if name.startswith(("redis://", "rediss://", "unix://")):
        from dovetail.ledger.store.redis import RedisStore

        return RedisStore(name)
    raise ValueError(f"--store {name}: sqlite, memory or a redis:// URL is wanted")
