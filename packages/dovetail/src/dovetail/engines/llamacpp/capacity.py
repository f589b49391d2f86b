"""The capacity of this machine: context length, threads, and the slots of the engine.

The context length is estimated for a standard transformer with 16-bit keys and values. Models with
smaller caches get a shorter context window than would fit. A configured length is used unchanged.
"""

import asyncio
import os
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MIN_CONTEXT_TOKENS = 4096  # agents cannot work with less, so try it even if it may not fit
CONTEXT_STEP_TOKENS = 1024
CACHE_MEMORY_FRACTION = 0.6  # of the memory that remains after loading the weights
KV_ELEMENT_BYTES = 2
SMALL_MACHINE_CORES = 4


def fit_context_length(
    metadata: Mapping[str, object], model: Path, slots: int, free_bytes: int | None
) -> int:
    """Return the context length per slot: the model's, or as much of it as fits into memory."""
    own = trained_context_length(metadata) or MIN_CONTEXT_TOKENS
    per_token = kv_bytes_per_token(metadata)
    if free_bytes is None or not per_token:
        return own
    room = CACHE_MEMORY_FRACTION * (free_bytes - model.stat().st_size)
    fitting = int(room / (per_token * slots)) // CONTEXT_STEP_TOKENS * CONTEXT_STEP_TOKENS
    return min(own, max(fitting, MIN_CONTEXT_TOKENS))


def trained_context_length(metadata: Mapping[str, object]) -> int | None:
    """Return the context length that the model was trained for."""
    return _number(metadata, "context_length") or None


def kv_bytes_per_token(metadata: Mapping[str, object]) -> int:
    """Return the KV cache bytes per token; 0 if the file does not have the required metadata."""
    layers, width = _number(metadata, "block_count"), _number(metadata, "embedding_length")
    heads = _number(metadata, "attention.head_count")
    if not (layers and width and heads):
        return 0
    shared = _value(metadata, "attention.head_count_kv")
    if isinstance(shared, list):  # one value per layer
        kv_heads = sum(count for count in shared if isinstance(count, int))
    else:
        kv_heads = layers * (shared if isinstance(shared, int) else heads)
    key = _number(metadata, "attention.key_length") or width // heads
    value = _number(metadata, "attention.value_length") or width // heads
    return kv_heads * (key + value) * KV_ELEMENT_BYTES


def available_memory_bytes() -> int | None:
    """Return the available memory in bytes; None if it cannot be determined."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return _physical_memory_bytes()
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in sizes else None


def default_thread_count(cores: int | None = None) -> int | None:
    """Return one less than the number of cores if there are few; None for llama.cpp's default.

    The threads synchronize at every step, so a thread that shares its core with another process
    delays all of them. On two contended cores, one thread was about ten times as fast as two.
    """
    count = cores or _available_cores()
    return max(1, count - 1) if count <= SMALL_MACHINE_CORES else None


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _physical_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return None


def _value(metadata: Mapping[str, object], key: str) -> object:
    return metadata.get(f"{metadata.get('general.architecture')}.{key}")


def _number(metadata: Mapping[str, object], key: str) -> int:
    """Return an integer; for a list with one value per layer, the largest."""
    value = _value(metadata, key)
    if isinstance(value, list):
        return max((entry for entry in value if isinstance(entry, int)), default=0)
    return value if isinstance(value, int) else 0


@dataclass
class Slot:
    """A slot of the engine: its last session, and the ids in its cache."""

    number: int
    session: str | None = None
    token_ids: "array[int]" = field(default_factory=lambda: array("I"))
    last_used: int = 0
    busy: bool = False


class SlotPool:
    """The slots of one engine."""

    __slots__ = ("_clock", "_semaphore", "_slots")

    def __init__(self, count: int) -> None:
        self._slots = [Slot(number) for number in range(count)]
        self._semaphore = asyncio.Semaphore(count)
        self._clock = 0

    @property
    def busy_count(self) -> int:
        return sum(slot.busy for slot in self._slots)

    @property
    def count(self) -> int:
        return len(self._slots)

    async def acquire(self, session: str | None, prompt: "array[int]") -> Slot:
        """Return the best free slot for this prompt. Wait if all slots are busy."""
        await self._semaphore.acquire()
        free = [slot for slot in self._slots if not slot.busy]
        slot = max(free, key=lambda slot: _slot_score(slot, session, prompt))
        slot.busy = True
        slot.session, slot.token_ids = session, prompt
        return slot

    def release(self, slot: Slot, generated: "array[int]", *, ends_session: bool = False) -> None:
        """Free the slot. Its cache then holds the prompt and the ids generated after it.

        `ends_session`: the slot is the next to be used for another session.
        """
        self._clock += 1
        slot.busy, slot.last_used = False, 0 if ends_session else self._clock
        slot.session = None if ends_session else slot.session
        slot.token_ids = slot.token_ids + generated
        self._semaphore.release()


def _slot_score(slot: Slot, session: str | None, prompt: "array[int]") -> tuple[bool, int, int]:
    """Rank the session's own slot first, then one whose ids are a prefix of the prompt, then LRU.

    A slot that shares only its beginning with the prompt is not preferred: two sessions of one
    agent begin alike, and each would evict the other.
    """
    own = session is not None and slot.session == session
    common = common_prefix_length(slot.token_ids, prompt)
    return own, common if common * 2 > len(slot.token_ids) else 0, -slot.last_used


def common_prefix_length(one: "array[int]", other: "array[int]") -> int:
    """Return the number of leading ids that two sequences share."""
    left, right = memoryview(one).cast("B"), memoryview(other).cast("B")
    size = one.itemsize
    low, high = 0, min(len(one), len(other))
    while low < high:  # equal up to low; halving compares each id about once
        middle = (low + high + 1) // 2
        if left[low * size : middle * size] == right[low * size : middle * size]:
            low = middle
        else:
            high = middle - 1
    return low
