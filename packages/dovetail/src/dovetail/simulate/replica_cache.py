"""The KV cache of a simulated replica: running requests pin their blocks, as in vLLM."""

from collections import Counter, OrderedDict
from collections.abc import Sequence


class ReplicaCache:
    """The blocks of a replica.

    `capacity`: the number of blocks.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._pins: Counter[int] = Counter()
        self._unshared = 0  # blocks of running requests that no other request can have
        self._evictable: OrderedDict[int, None] = OrderedDict()  # least recently used first

    def pin(self, blocks: Sequence[int], unshared: int) -> int | None:
        """Reserve the blocks of a request, if there is space. Return the cached leading ones.

        A request that is larger than the cache runs alone.
        """
        blocks = blocks[: self.capacity]
        missing = sum(block not in self._pins for block in blocks)
        if self._pins and len(self._pins) + self._unshared + missing + unshared > self.capacity:
            return None
        cached = self._match(blocks)
        for block in blocks:
            self._evictable.pop(block, None)
        self._pins.update(blocks)
        self._unshared += unshared
        self._evict()
        return cached

    def unpin(self, blocks: Sequence[int], unshared: int, generated: Sequence[int]) -> None:
        """Release the blocks of a request. `generated`: blocks of its output that stay cached.

        The end of a prompt is evicted before its beginning.
        """
        self._unshared -= unshared
        for block in reversed(generated):
            if block not in self._pins:
                self._evictable[block] = None
                self._evictable.move_to_end(block)
        for block in reversed(blocks[: self.capacity]):
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]
                self._evictable[block] = None
        self._evict()

    def _match(self, blocks: Sequence[int]) -> int:
        """Return the number of leading blocks that are cached.

        A block is evicted after all blocks that follow it, so a binary search finds the last one.
        """
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            if blocks[middle - 1] in self._pins or blocks[middle - 1] in self._evictable:
                low = middle
            else:
                high = middle - 1
        return low

    def _evict(self) -> None:
        used = len(self._pins) + self._unshared
        while self._evictable and used + len(self._evictable) > self.capacity:
            self._evictable.popitem(last=False)
