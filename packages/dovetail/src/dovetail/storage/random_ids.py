"""Random numbers for ids, read from the system many at once: a system call per id costs more."""

import os

ID_NUMBER_BYTES = 12

_BATCH_SIZE = 256
_numbers: list[bytes] = []
os.register_at_fork(after_in_child=_numbers.clear)  # two processes must not use the same numbers


def new_id_number() -> bytes:
    """Return `ID_NUMBER_BYTES` random bytes. Thread-safe: numbers are taken atomically."""
    while True:
        try:
            return _numbers.pop()
        except IndexError:
            batch = os.urandom(_BATCH_SIZE * ID_NUMBER_BYTES)
            starts = range(0, len(batch), ID_NUMBER_BYTES)
            _numbers.extend([batch[at : at + ID_NUMBER_BYTES] for at in starts])
