"""Which slot a generation runs in. A slot keeps what it read: a session comes back to its own.

Here is the queue, too: no more requests are sent than there are slots, so that one that is given
up while it waits costs nothing.
"""

import asyncio
from array import array
from dataclasses import dataclass, field


@dataclass
class Slot:
    """A place in the engine: who was there last, and the ids it read and wrote there."""

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
        """A free slot, the best for this prompt. Waits in line if there is none."""
        await self._semaphore.acquire()
        free = [slot for slot in self._slots if not slot.busy]
        slot = max(free, key=lambda slot: _slot_score(slot, session, prompt))
        slot.busy = True
        slot.session, slot.token_ids = session, prompt
        return slot

    def release(self, slot: Slot, generated: "array[int]") -> None:
        """The slot is free again; it holds its prompt and what was generated behind it."""
        self._clock += 1
        slot.busy, slot.last_used = False, self._clock
        slot.token_ids = slot.token_ids + generated
        self._semaphore.release()


def _slot_score(slot: Slot, session: str | None, prompt: "array[int]") -> tuple[bool, int, int]:
    """The session's own slot first, then one whose content goes on in this prompt, then the oldest.

    A slot of which the prompt shares only the beginning is not taken for that: two sessions of one
    agent begin alike, and each would push the other out.
    """
    own = session is not None and slot.session == session
    common = common_prefix_length(slot.token_ids, prompt)
    return own, common if common * 2 > len(slot.token_ids) else 0, -slot.last_used


def common_prefix_length(one: "array[int]", other: "array[int]") -> int:
    """How many ids two sequences share at their beginning."""
    left, right = memoryview(one).cast("B"), memoryview(other).cast("B")
    size = one.itemsize
    low, high = 0, min(len(one), len(other))
    while low < high:  # equal up to low; the halves make each id be compared about once
        middle = (low + high + 1) // 2
        if left[low * size : middle * size] == right[low * size : middle * size]:
            low = middle
        else:
            high = middle - 1
    return low
