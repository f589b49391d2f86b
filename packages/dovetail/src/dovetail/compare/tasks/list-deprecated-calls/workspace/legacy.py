"""Hashes."""


def old_hash(value):
    """Deprecated."""
    return hash(value) % 1000


def new_hash(value):
    return hash(value)
