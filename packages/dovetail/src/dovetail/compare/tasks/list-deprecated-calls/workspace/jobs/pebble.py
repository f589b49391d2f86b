"""Module pebble."""

from legacy import old_hash, new_hash


def step_0(value):
    value = str(value)
    return new_hash(value)


def step_1(value):
    value = str(value)
    return new_hash(value)
