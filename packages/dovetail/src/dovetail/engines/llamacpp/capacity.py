"""What this machine can hold and do: the length of the context window, the number of threads.

The estimate of the window is that of a plain transformer with 16-bit keys and values. Models with
smaller caches get a shorter window than they could have; one that the user names is never
questioned.
"""

import os
from collections.abc import Mapping
from pathlib import Path

SMALLEST = 4096  # below that no agent can work: better to try and fail
STEP = 1024
SHARE = 0.6  # of the memory that is free behind the weights
KV_BYTES = 2
FEW_CORES = 4


def window(metadata: Mapping[str, object], model: Path, slots: int, free: int | None) -> int:
    """The window of each slot: the model's own, or as much of it as fits into memory."""
    own = trained_window(metadata) or SMALLEST
    per_token = cache_bytes_per_token(metadata)
    if free is None or not per_token:
        return own
    room = SHARE * (free - model.stat().st_size)
    fitting = int(room / (per_token * slots)) // STEP * STEP
    return min(own, max(fitting, SMALLEST))


def trained_window(metadata: Mapping[str, object]) -> int | None:
    """The window that the model was made for."""
    return _number(metadata, "context_length") or None


def cache_bytes_per_token(metadata: Mapping[str, object]) -> int:
    """What one token takes in the cache of keys and values; 0 if the file does not say."""
    layers, width = _number(metadata, "block_count"), _number(metadata, "embedding_length")
    heads = _number(metadata, "attention.head_count")
    if not (layers and width and heads):
        return 0
    shared = _value(metadata, "attention.head_count_kv")
    if isinstance(shared, list):  # one number for each layer
        kv_heads = sum(count for count in shared if isinstance(count, int))
    else:
        kv_heads = layers * (shared if isinstance(shared, int) else heads)
    key = _number(metadata, "attention.key_length") or width // heads
    value = _number(metadata, "attention.value_length") or width // heads
    return kv_heads * (key + value) * KV_BYTES


def free_memory() -> int | None:
    """Bytes that this machine can give; None where it does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return _physical_memory()
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in sizes else None


def default_threads(cores: int | None = None) -> int | None:
    """One core less than there are, where there are few; None leaves it to llama.cpp.

    Its threads wait for each other at every step, so one that shares its core with somebody else
    holds up all: on two contended cores one thread was about ten times as fast as two.
    """
    count = cores or _usable_cores()
    return max(1, count - 1) if count <= FEW_CORES else None


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return None


def _value(metadata: Mapping[str, object], key: str) -> object:
    return metadata.get(f"{metadata.get('general.architecture')}.{key}")


def _number(metadata: Mapping[str, object], key: str) -> int:
    """A whole number; of a list with one for each layer, the largest."""
    value = _value(metadata, key)
    if isinstance(value, list):
        return max((entry for entry in value if isinstance(entry, int)), default=0)
    return value if isinstance(value, int) else 0
