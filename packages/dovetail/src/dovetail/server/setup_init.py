"""From settings to a service: models loaded, engines made, the ledger opened."""

from dovetail.server.build import DEFAULT_MODEL, build, engine_here, own_template
from dovetail.server.faults import SETUP_FAULTS
from dovetail.server.kept import TURNS, open_keyring, open_ledger

__all__ = [
    "DEFAULT_MODEL",
    "SETUP_FAULTS",
    "TURNS",
    "build",
    "engine_here",
    "open_keyring",
    "open_ledger",
    "own_template",
]
