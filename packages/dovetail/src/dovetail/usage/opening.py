"""Open the usage store that the settings select."""

from importlib.util import find_spec
from pathlib import Path

from dovetail.settings.config import Config
from dovetail.settings.installation import default_data_dir, install_command
from dovetail.storage.database_file import move_damaged_file
from dovetail.storage.redis_url import REDIS_SCHEMES
from dovetail.usage.sqlite import SqliteUsageStore
from dovetail.usage.store import UsageStore
from dovetail.usage.writer import UsageWriter

USAGE_FILE = "usage.sqlite"  # in the data folder


def open_usage_store(config: Config) -> UsageStore | None:
    """Open the store of a server; None if usage is not recorded."""
    if not config.usage:
        return None
    if config.store == "memory":
        return SqliteUsageStore(
            None, max_age=config.usage_max_age, max_sessions=config.usage_max_sessions
        )
    if config.store == "sqlite":
        return SqliteUsageStore(
            usage_file(config), max_age=config.usage_max_age, max_sessions=config.usage_max_sessions
        )
    if not config.store.startswith(REDIS_SCHEMES):
        return None  # opening the ledger reports the invalid setting
    if find_spec("redis") is None:
        raise ValueError(f"--store with a Redis URL requires: {install_command('redis')}")
    from dovetail.usage.redis import RedisUsageStore

    return RedisUsageStore(
        config.store, max_age=config.usage_max_age, max_sessions=config.usage_max_sessions
    )


def open_usage(config: Config) -> UsageWriter | None:
    """Open the store of a server and create its writer. A damaged file is moved aside."""
    if config.usage and config.store == "sqlite":
        move_damaged_file(usage_file(config), "usage store")
    store = open_usage_store(config)
    return None if store is None else UsageWriter(store)


def usage_file(config: Config) -> Path:
    """Return the path of the SQLite store."""
    return (config.data_dir or default_data_dir()) / USAGE_FILE
