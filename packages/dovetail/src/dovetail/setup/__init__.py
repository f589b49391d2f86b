"""From settings to a service: models loaded, engines made, the ledger opened."""

from dovetail.setup.build import DEFAULT_MODEL, build, own_template
from dovetail.setup.kept import TURNS, open_keyring, open_ledger

__all__ = ["DEFAULT_MODEL", "TURNS", "build", "open_keyring", "open_ledger", "own_template"]
