"""Module garnet."""

from legacy import old_hash, new_hash


def step_0(value):
    value = str(value)
    return new_hash(value)


def step_1(value):
    # old_hash(value) was slower
    return new_hash(value)


def step_2(value):
    value = str(value)
    return new_hash(value)


def step_3(value):
    value = str(value)
    return new_hash(value)
